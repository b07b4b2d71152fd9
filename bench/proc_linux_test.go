package main

import (
	"net"
	"os"
	"testing"
)

// Elsewhere there is no /proc, and results leave the CPU time of servers out.
func TestServersAreFoundByTheirPortsAndTheirTimeByTheirProcesses(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if pid := serverAt("postgres://user@"+listener.Addr().String()+"/db", "1"); pid != os.Getpid() {
		t.Errorf("process %d listens, want this one, %d", pid, os.Getpid())
	}
	for _, elsewhere := range []string{"postgres://192.0.2.1:5432/db", "postgres://db.example/db", ":"} {
		if pid := serverAt(elsewhere, "5432"); pid != 0 {
			t.Errorf("%s: process %d of this machine", elsewhere, pid)
		}
	}
	own, ok := treeCPU(os.Getpid())
	if parent, all := treeCPU(os.Getppid()); !ok || !all || parent < own {
		t.Errorf("this process used %v, and its parent with it %v", own, parent)
	}
	if _, ok := treeCPU(-1); ok {
		t.Error("a process that is not there has used time")
	}
}
