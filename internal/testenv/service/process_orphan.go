//go:build unix && !linux

package service

import "syscall"

// signalOrphan does nothing: other kernels send no such signal.
func signalOrphan(*syscall.SysProcAttr, syscall.Signal) {}
