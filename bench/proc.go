package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is Linux's unit of process times.
const tick = 10 * time.Millisecond

// serverAt returns the process that listens at the port of a URL on this machine, or 0 if /proc
// does not show it.
func serverAt(address, defaultPort string) int {
	u, err := url.Parse(address)
	if err != nil {
		return 0
	}
	if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return 0
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		port, _ = strconv.Atoi(defaultPort)
	}
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		listening(table, port, inodes)
	}
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	best := 0
	for _, file := range files {
		target, err := os.Readlink(file)
		if err != nil || !inodes[target] {
			continue
		}
		pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
		if best == 0 || pid < best {
			best = pid
		}
	}
	return best
}

// listening adds the sockets that listen at a port, as /proc names them.
func listening(table string, port int, inodes map[string]bool) {
	text, _ := os.ReadFile(table)
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) > 9 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			inodes["socket:["+f[9]+"]"] = true
		}
	}
}

// treeCPU returns the CPU time of a process, its ended children and all its descendants. It returns
// false if /proc cannot be read.
func treeCPU(root int) (time.Duration, bool) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	parent, ticks := map[int]int{}, map[int]int{}
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
		// The name, in parentheses, may hold any characters.
		f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(f) < 15 {
			continue
		}
		parent[pid], _ = strconv.Atoi(f[1])
		for _, field := range f[11:15] { // utime, stime, cutime, cstime
			n, _ := strconv.Atoi(field)
			ticks[pid] += n
		}
	}
	if _, ok := ticks[root]; !ok {
		return 0, false
	}
	total := 0
	for pid, n := range ticks {
		for up, depth := pid, 0; up > 0 && depth < 20; up, depth = parent[up], depth+1 {
			if up == root {
				total += n
				break
			}
		}
	}
	return time.Duration(total) * tick, true
}

// machineCPU returns the time in which the processors of the machine were busy.
func machineCPU() (busy time.Duration, ok bool) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, false
	}
	line, _, _ := strings.Cut(string(text), "\n")
	for i, field := range strings.Fields(line)[1:] {
		if i == 3 || i == 4 || i > 6 { // idle, waiting for a disk, time of others
			continue
		}
		n, _ := strconv.Atoi(field)
		busy += time.Duration(n) * tick
	}
	return busy, true
}

// ownCPU returns the CPU time of this process and its ended children.
func ownCPU() time.Duration {
	var total time.Duration
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if syscall.Getrusage(who, &u) == nil {
			total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return total
}

// forgetPeak resets the kernel's peak of memory.
func forgetPeak() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// peakRSS returns the peak memory of a process in bytes, of "self" since forgetPeak.
func peakRSS(process string) *float64 {
	text, err := os.ReadFile("/proc/" + process + "/status")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				return nil
			}
			bytes := float64(kb) * 1024
			return &bytes
		}
	}
	return nil
}
