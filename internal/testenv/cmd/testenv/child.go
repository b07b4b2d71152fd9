package main

import (
	"os"
	"os/exec"
	"syscall"
)

// child runs command in a process group of its own, forwards signals to the whole group, and
// returns the command's exit status. The group matters: go test leaves its test binaries running
// when it is terminated.
func child(command, vars []string, signals <-chan os.Signal) int {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = append(os.Environ(), vars...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	group(cmd)
	if err := cmd.Start(); err != nil {
		say("%v", err)
		return 127
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // the status is in ProcessState
	}()
	kill := false
	for {
		select {
		case sig := <-signals:
			if kill {
				sig = os.Kill
			}
			kill = true
			signalGroup(cmd.Process, sig)
		case <-done:
			return status(cmd.ProcessState)
		}
	}
}

func status(state *os.ProcessState) int {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return state.ExitCode()
}
