package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// places runs programs among the packages of a release.
type places interface {
	// make returns when the release is installed. It fetches missing packages.
	make(ctx context.Context, r release) error
	// command returns the command that runs a program in the release, in the directory dir of the
	// module.
	command(ctx context.Context, r release, dir string, program ...string) *exec.Cmd
}

// placesFor returns folders if they can be made, and images otherwise.
func placesFor(ctx context.Context, root, trees string) (places, error) {
	_, mmdebstrap := exec.LookPath("mmdebstrap")
	_, unshare := exec.LookPath("unshare")
	lacks := errors.Join(mmdebstrap, unshare)
	if os.Geteuid() != 0 {
		lacks = errors.Join(lacks, errors.New("not run as root"))
	}
	if lacks == nil {
		return &folders{root: root, trees: trees}, nil
	}
	if err := exec.CommandContext(ctx, "docker", "version", "--format", "{{.Server.Version}}").Run(); err != nil {
		return nil, fmt.Errorf("servers of other releases come into a folder (%w) or from Docker, which does not answer (%w): "+
			"run it as root with mmdebstrap installed, or start Docker", lacks, err)
	}
	return &images{root: root, docker: "docker"}, nil
}

// folders are releases made by mmdebstrap.
type folders struct{ root, trees string }

func (f *folders) tree(r release) string { return filepath.Join(f.trees, r.name) }

func (f *folders) make(ctx context.Context, r release) error {
	tree := f.tree(r)
	if _, err := os.Stat(filepath.Join(tree, "usr/lib/rabbitmq")); err == nil {
		return nil
	}
	keys, err := f.keys(ctx, r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.trees, 0o755); err != nil {
		return err
	}
	fmt.Printf("fetching %s into %s\n", r.title, tree)
	// A mirror of the development release may be weeks old, which is harmless for tests.
	args := []string{
		"--quiet", "--mode=root", "--variant=minbase", "--format=directory", "--include=" + strings.Join(r.packages(), ","),
		"--keyring=" + keys, `--aptopt=Acquire::Check-Valid-Until "false"`, r.name, tree + ".new",
	}
	if err := os.RemoveAll(tree + ".new"); err != nil { // left by an interrupted run
		return err
	}
	if err := mmdebstrap(ctx, append(args, r.sources()...)); err != nil {
		return err
	}
	return os.Rename(tree+".new", tree)
}

// mmdebstrap runs with private mounts that end with it, so the machine's own /dev never appears in
// a tree.
func mmdebstrap(ctx context.Context, args []string) error {
	cmd := exec.CommandContext(ctx, "unshare", append([]string{"--mount", "--propagation", "private", "mmdebstrap"}, args...)...)
	if out, err := interruptible(cmd).CombinedOutput(); err != nil {
		return fmt.Errorf("mmdebstrap %s: %w\n%s", args[len(args)-1], err, out) // the last is a line of sources.list
	}
	return nil
}

// keys returns the file with the keys of the release's archive. Debian packages Ubuntu's keys only
// from 13 on.
func (f *folders) keys(ctx context.Context, r release) (string, error) {
	name := "usr/share/keyrings/debian-archive-keyring.gpg"
	if r.ubuntu {
		name = "usr/share/keyrings/ubuntu-archive-keyring.gpg"
	}
	for _, tree := range []string{"/", filepath.Join(f.trees, "keys")} {
		if _, err := os.Stat(filepath.Join(tree, name)); err == nil {
			return filepath.Join(tree, name), nil
		}
	}
	if !r.ubuntu {
		return "", errors.New("the keys of Debian's archive are missing: install debian-archive-keyring")
	}
	i := slices.IndexFunc(releases, func(r release) bool { return r.name == "trixie" })
	tree := filepath.Join(f.trees, "keys")
	args := []string{
		"--quiet", "--mode=root", "--variant=extract", "--format=directory", "--include=ubuntu-keyring",
		releases[i].name, tree,
	}
	if err := mmdebstrap(ctx, append(args, releases[i].sources()...)); err != nil {
		return "", fmt.Errorf("fetch the keys of Ubuntu's archive: %w", err)
	}
	return filepath.Join(tree, name), nil
}

// enter runs a program in a tree with the machine's own /proc, /dev and /tmp and the module. The
// mounts are visible to this program alone, and end with it.
const enter = `set -e
tree=$1 root=$2 dir=$3
shift 3
mkdir -p "$tree$root"
for own in /proc /dev; do mount --rbind "$own" "$tree$own"; done
for own in /tmp "$root"; do mount --bind "$own" "$tree$own"; done
exec chroot "$tree" /bin/sh -c 'cd "$0" && exec "$@"' "$dir" "$@"`

// enter returns the arguments of unshare.
func (f *folders) enter(r release, dir string, program ...string) []string {
	return append([]string{"--mount", "sh", "-c", enter, "enter", f.tree(r), f.root, dir}, program...)
}

func (f *folders) command(ctx context.Context, r release, dir string, program ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "unshare", append([]string{"--propagation", "private"}, f.enter(r, dir, program...)...)...)
	// The environment is cleared, since it may name servers.
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"}
	return cmd
}

// scripts makes scripts in dir, named like programs in bin of a release. A script runs its program,
// with the caller's arguments and environment, from among the packages of another release. Mounts
// made there are private; a tree's root is no mount, so the propagation cannot be set again.
func (f *folders) scripts(r release, dir, bin string, names ...string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range names {
		line := "exec unshare --propagation unchanged"
		for _, word := range f.enter(r, f.root, filepath.Join(bin, name)) {
			line += " '" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+line+" \"$@\"\n"), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// images are built by Docker.
type images struct{ root, docker string }

func (i *images) name(r release) string { return "boxpair-compat-" + r.name }

func (i *images) make(ctx context.Context, r release) error {
	cmd := exec.CommandContext(ctx, i.docker, "build", "--quiet", "--tag", i.name(r), "-")
	cmd.Stdin = strings.NewReader("FROM " + r.image() + "\n" +
		`RUN printf '%s\n' '` + strings.Join(r.sources()[1:], `' '`) + `' >>/etc/apt/sources.list` + "\n" +
		`RUN printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d && apt-get update && ` +
		`DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends ` + strings.Join(r.packages(), " ") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("docker build: %w\n%s", err, out)
	}
	return nil
}

func (i *images) command(ctx context.Context, r release, dir string, program ...string) *exec.Cmd {
	// Docker's default of 64 MB of shared memory is too small for PostgreSQL's parallel queries.
	args := []string{"run", "--rm", "--init", "--shm-size=1g", "--volume", i.root + ":" + i.root, "--workdir", dir, i.name(r)}
	return exec.CommandContext(ctx, i.docker, append(args, program...)...)
}
