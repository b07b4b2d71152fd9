package service

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Images for machines without installed binaries.
const (
	postgresImage = "postgres:17"
	rabbitImage   = "rabbitmq:4.1"
	mysqlImage    = "mysql:8.4"
)

// DockerWorks tells whether a Docker daemon answers.
func DockerWorks(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, "docker", "version", "--format", "{{.Server.Version}}").Run() == nil
}

// pull fetches an image unless it exists locally, so that the start timeout of a server does not
// include the download.
func pull(ctx context.Context, image string) error {
	if exec.CommandContext(ctx, "docker", "image", "inspect", image).Run() == nil {
		return nil
	}
	if out, err := exec.CommandContext(ctx, "docker", "pull", "--quiet", image).CombinedOutput(); err != nil {
		return fmt.Errorf("pull %s: %w\n%s", image, err, out)
	}
	return nil
}

// dockerRun returns the command that runs a container in the foreground. Its client forwards
// signals, so a container is stopped like a process. A crashed container is started again from its
// volume.
func dockerRun(name string, ports []int, flags ...string) *exec.Cmd {
	args := []string{"run", "--rm", "--name", name}
	for _, port := range ports {
		args = append(args, "--publish", fmt.Sprintf("%s:%d:%d", loopback, port, port))
	}
	return exec.Command("docker", slices.Concat(args, flags)...)
}

// dockerRemove removes a container and its volumes, whatever their state.
func dockerRemove(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), killGrace)
	defer cancel()
	_ = exec.CommandContext(ctx, "docker", "rm", "--force", "--volumes", name).Run()
	_ = exec.CommandContext(ctx, "docker", "volume", "rm", "--force", name).Run()
}

// wrap writes a script that runs one command line followed by the caller's arguments, and returns
// its path. Tests get every tool as such a script, whether the tool is a binary with an environment
// or runs in a container.
func wrap(dir, name string, env []string, command ...string) (string, error) {
	var b strings.Builder
	b.WriteString("#!/bin/sh\n")
	for _, kv := range env {
		key, value, _ := strings.Cut(kv, "=")
		fmt.Fprintf(&b, "export %s=%s\n", key, quote(value))
	}
	b.WriteString("exec")
	for _, word := range command {
		b.WriteString(" " + quote(word))
	}
	b.WriteString(" \"$@\"\n")
	path := filepath.Join(dir, name)
	return path, os.WriteFile(path, []byte(b.String()), 0o700)
}

func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
