//go:build !linux

package servers

import "errors"

func mount(string, int) error { return errors.ErrUnsupported }

func unmount(string) error { return errors.ErrUnsupported }
