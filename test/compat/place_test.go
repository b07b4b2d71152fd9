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
	"testing"
)

// TestMain lets the test binary stand in for docker, under its name: it notes its arguments and
// what it reads.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "docker" {
		os.Exit(m.Run())
	}
	input := ""
	if slices.Contains(os.Args, "build") {
		text, _ := os.ReadFile("/dev/stdin")
		input = string(text)
	}
	note := filepath.Join(filepath.Dir(os.Args[0]), "note")
	if err := os.WriteFile(note, fmt.Appendf(nil, "%q\n%s", os.Args[1:], input), 0o600); err != nil {
		os.Exit(1)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(os.Args[0]), "fails")); err == nil {
		fmt.Println("said by docker")
		os.Exit(1)
	}
	os.Exit(0)
}

// standIn returns images that give their commands to a stand-in, and what that was given last.
func standIn(t *testing.T) (i *images, given func() string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "docker")
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	return &images{root: "/module", docker: program}, func() string {
		text, err := os.ReadFile(filepath.Join(dir, "note"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
}

func TestImageHasThePackagesOfItsRelease(t *testing.T) {
	t.Parallel()
	for _, r := range releases {
		docker, given := standIn(t)
		if err := docker.make(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		args, file, _ := strings.Cut(given(), "\n")
		if want := fmt.Sprintf(`["build" "--quiet" "--tag" "boxpair-compat-%s" "-"]`, r.name); args != want {
			t.Errorf("%s: docker %s, want %s", r.name, args, want)
		}
		if !strings.HasPrefix(file, "FROM "+r.image()+"\n") {
			t.Errorf("%s: not from its image:\n%s", r.name, file)
		}
		lines := strings.Split(strings.TrimSpace(file), "\n")
		if install := lines[len(lines)-1]; !strings.HasSuffix(install, strings.Join(r.packages(), " ")) || strings.Index(install, "policy-rc.d") > strings.Index(install, "install") {
			t.Errorf("%s: %s", r.name, install)
		}
		for _, source := range r.sources()[1:] {
			if !strings.Contains(file, "'"+source+"'") {
				t.Errorf("%s lacks %q:\n%s", r.name, source, file)
			}
		}
		checkShell(t, lines)
	}
}

// checkShell has a shell read the RUN lines of a Dockerfile.
func checkShell(t *testing.T, lines []string) {
	t.Helper()
	for _, line := range lines {
		command, isRun := strings.CutPrefix(line, "RUN ")
		if !isRun {
			continue
		}
		if out, err := exec.CommandContext(t.Context(), "sh", "-n", "-c", command).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
	}
}

func TestImageThatCannotBeBuiltSaysWhatDockerSaid(t *testing.T) {
	t.Parallel()
	docker, _ := standIn(t)
	if err := os.WriteFile(filepath.Join(filepath.Dir(docker.docker), "fails"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := docker.make(t.Context(), releases[0]); err == nil || !strings.Contains(err.Error(), "said by docker") {
		t.Errorf("error is %v", err)
	}
}

func TestScriptRunsAProgramOfAnotherReleaseWithTheCallersArguments(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := &folders{root: "/module", trees: "/module/it's"}
	if err := f.scripts(releases[0], filepath.Join(dir, "new"), "/usr/lib/rabbitmq/bin", "rabbitmqctl"); err != nil {
		t.Fatal(err)
	}
	// In place of unshare: what it would be given behind the program that enters.
	if err := os.WriteFile(filepath.Join(dir, "unshare"), []byte("#!/bin/sh\nshift 7\nprintf '%s|' \"$@\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "new", "rabbitmqctl"), "eval", "a b.")
	cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	if want := "/module/it's/jammy|/module|/module|/usr/lib/rabbitmq/bin/rabbitmqctl|eval|a b.|"; err != nil || string(out) != want {
		t.Errorf("%v: %q, want %q", err, out, want)
	}
}

// lacking is a place that has one release only.
type lacking struct {
	folders
	has string
}

func (l *lacking) make(_ context.Context, r release) error {
	if r.name != l.has {
		return errors.New("no route to the archive")
	}
	return nil
}

func TestReleaseThatIsNotToBeHadIsNamed(t *testing.T) {
	t.Parallel()
	rows, err := tryAll(t.Context(), &lacking{has: "trixie"}, releases, func(r release) (row, error) { return row{release: r}, nil })
	if len(rows) != 1 || rows[0].release.name != "trixie" {
		t.Errorf("tried %v", rows)
	}
	if err == nil || !strings.Contains(err.Error(), "Ubuntu 22.04 (jammy) is not to be had and was not tested: no route to the archive") {
		t.Errorf("error is %v", err)
	}
}

func TestProgramInAnImageSeesTheModuleAndItsServersEndWithIt(t *testing.T) {
	t.Parallel()
	docker, given := standIn(t)
	cmd := docker.command(context.Background(), releases[0], "/module/store", "sh", "-c", "echo $HOME")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	want := `["run" "--rm" "--init" "--shm-size=1g" "--volume" "/module:/module" "--workdir" "/module/store" "boxpair-compat-jammy" "sh" "-c" "echo $HOME"]`
	if got, _, _ := strings.Cut(given(), "\n"); got != want {
		t.Errorf("docker %s, want %s", got, want)
	}
}
