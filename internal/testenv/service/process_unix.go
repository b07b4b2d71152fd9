//go:build unix

package service

import (
	"os"
	"os/exec"
	"syscall"
)

func detach(cmd *exec.Cmd, orphaned syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	signalOrphan(cmd.SysProcAttr, orphaned)
}

// runAs makes cmd run as another user. It needs root.
func runAs(cmd *exec.Cmd, uid, gid uint32) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: gid}
}

func signalProcess(p *os.Process, sig syscall.Signal) error { return p.Signal(sig) }

func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }

func pause(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

func resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
