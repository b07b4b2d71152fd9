//go:build !unix

package service

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

func detach(*exec.Cmd, syscall.Signal) {}

func runAs(*exec.Cmd, uint32, uint32) {}

// signalProcess kills: other systems have no gentler signal that all servers understand.
func signalProcess(p *os.Process, _ syscall.Signal) error { return p.Kill() }

func killGroup(p *os.Process) { _ = p.Kill() }

func pause(*os.Process) error { return errors.ErrUnsupported }

func resume(*os.Process) error { return errors.ErrUnsupported }
