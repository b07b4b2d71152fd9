package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// fakeTime returns the path of libfaketime. On Debian and its relatives, root installs a missing
// libfaketime.
func fakeTime(ctx context.Context) (string, error) {
	if path := findFakeTime(); path != "" {
		return path, nil
	}
	if apt, err := exec.LookPath("apt-get"); err == nil && runtime.GOOS == "linux" && os.Geteuid() == 0 {
		cmd := exec.CommandContext(ctx, apt, "install", "--yes", "--no-install-recommends", "libfaketime")
		cmd.Env = append(cmd.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("apt-get install libfaketime: %w\n%s", err, out)
		}
	}
	if path := findFakeTime(); path != "" {
		return path, nil
	}
	return "", errors.New("libfaketime is not installed (Debian: apt-get install libfaketime)")
}

func findFakeTime() string {
	for _, pattern := range []string{
		"/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1", "/usr/local/lib/faketime/libfaketime.so.1",
	} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

// clockFile makes the file with the offset of a clock, in a directory that any user may read.
func clockFile() (string, error) {
	dir, err := os.MkdirTemp("", "boxpair-clock-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "clock")
	return path, errors.Join(os.Chmod(dir, 0o755), os.WriteFile(path, []byte("+0\n"), 0o644))
}

func (p *Postgres) removeClock() error {
	if p.clock == "" {
		return nil
	}
	return os.RemoveAll(filepath.Dir(p.clock))
}
