//go:build unix && !linux

package service

import "syscall"

// signalOrphan does nothing: other kernels have no signal for orphans.
func signalOrphan(*syscall.SysProcAttr, syscall.Signal) {}
