package service

import "syscall"

// signalOrphan has the kernel send a signal to a process whose parent ends.
func signalOrphan(attr *syscall.SysProcAttr, orphaned syscall.Signal) { attr.Pdeathsig = orphaned }
