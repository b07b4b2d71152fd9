//go:build !faults

package fault

import "context"

// Enabled tells whether faults can be injected into this build.
const Enabled = false

// Hit does nothing in this build.
func Hit(context.Context, Point) error { return nil }

// Reach is Hit for callers without a context.
func Reach(Point) error { return nil }
