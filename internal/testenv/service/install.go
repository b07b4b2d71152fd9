package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// Install installs the packages of wanted servers without binaries, if it can: as root, with
// apt-get. Otherwise it does nothing. It reports its steps to say.
//
// The packages would start servers of their own on the standard ports. A policy-rc.d prevents the
// start during the installation; the tests would not use these servers anyway.
func Install(ctx context.Context, postgres, rabbitmq bool, say func(format string, args ...any)) error {
	var packages []string
	if postgres && PostgresBin() == "" {
		packages = append(packages, "postgresql")
	}
	if postgres && bouncerBin() == "" {
		packages = append(packages, "pgbouncer")
	}
	if rabbitmq && RabbitMQBin() == "" {
		packages = append(packages, "rabbitmq-server")
	}
	return install(ctx, packages, say)
}

// InstallMySQL is [Install] for MariaDB.
func InstallMySQL(ctx context.Context, say func(format string, args ...any)) error {
	if findMySQL().server != "" {
		return nil
	}
	return install(ctx, []string{"mariadb-server"}, say)
}

func install(ctx context.Context, packages []string, say func(format string, args ...any)) error {
	apt, err := exec.LookPath("apt-get")
	if len(packages) == 0 || err != nil || runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return nil
	}
	restore, err := refuseStarts("/usr/sbin/policy-rc.d")
	if err != nil {
		return err
	}
	say("apt-get install %s", strings.Join(packages, " "))
	for _, args := range [][]string{{"update"}, append([]string{"install", "--yes", "--no-install-recommends"}, packages...)} {
		cmd := exec.CommandContext(ctx, apt, args...)
		cmd.Env = append(cmd.Environ(), "DEBIAN_FRONTEND=noninteractive")
		// A kill would leave half-configured packages behind.
		cmd.Cancel = func() error { return signalProcess(cmd.Process, syscall.SIGTERM) }
		if out, failed := cmd.CombinedOutput(); failed != nil {
			err = fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), failed, out)
			break
		}
	}
	return errors.Join(err, restore())
}

// refuseStarts makes the system refuse to start services until restore is called, unless the
// administrator has a policy already.
func refuseStarts(path string) (restore func() error, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if errors.Is(err, os.ErrExist) {
		return func() error { return nil }, nil
	}
	if err != nil {
		return nil, err
	}
	restore = func() error { return os.Remove(path) }
	_, err = f.WriteString("#!/bin/sh\nexit 101\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, errors.Join(err, restore())
	}
	return restore, nil
}
