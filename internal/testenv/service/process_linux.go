package service

import "syscall"

// signalOrphan makes the kernel send a signal to the process when its parent ends.
func signalOrphan(attr *syscall.SysProcAttr, orphaned syscall.Signal) { attr.Pdeathsig = orphaned }
