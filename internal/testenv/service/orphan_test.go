//go:build !linux

package service

import "testing"

// Elsewhere the kernel tells nobody that its parent has died, and /proc does not
// say whose a process is.
const orphanEnv = "BOXPAIR_TESTENV_ORPHAN"

func orphan()                 {}
func seen(*testing.T, string) {}
func gone(*testing.T, string) {}
