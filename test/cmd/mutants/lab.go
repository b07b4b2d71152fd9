package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/boxpair/boxpair/test/mutants"
)

// The verdicts on a mutant.
const (
	isCaught = "caught"
	survived = "SURVIVED" // the test passes with it
	hung     = "HUNG"     // the test did not end, which is not how this mutant shows
	broken   = "BROKEN"   // nothing was learnt: it does not compile, or the test fails without it too
)

// lab builds and runs tests, with a mutant and without.
type lab struct {
	root    string // of the module
	dir     string // for what is built
	timeout time.Duration

	mu        sync.Mutex
	builds    map[string]*once // test binaries without a mutant, by package
	baselines map[mutants.Test]*once
}

// once holds the outcome of work that is done once.
type once struct {
	sync.Once
	path string
	err  error
}

func newLab(timeout time.Duration) (*lab, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return nil, fmt.Errorf("find the module: %w", err)
	}
	dir, err := os.MkdirTemp("", "boxpair-mutants-")
	if err != nil {
		return nil, err
	}
	return &lab{
		root: strings.TrimSpace(string(out)), dir: dir, timeout: timeout,
		builds: make(map[string]*once), baselines: make(map[mutants.Test]*once),
	}, nil
}

func (l *lab) close() { _ = os.RemoveAll(l.dir) }

// try returns the verdict on m.
func (l *lab) try(ctx context.Context, m mutants.Mutant) verdict {
	if err := l.baseline(ctx, m.Test); err != nil {
		return verdict{what: broken, output: "without the mutant: " + err.Error()}
	}
	dir, err := os.MkdirTemp(l.dir, m.Name+"-")
	if err != nil {
		return verdict{what: broken, output: err.Error()}
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary, err := l.mutated(ctx, m, dir)
	if err != nil {
		return verdict{what: broken, output: err.Error()}
	}
	r := l.run(ctx, binary, m.Test)
	switch {
	case r.passed:
		return verdict{what: survived, output: r.output}
	case r.timedOut && m.Hang:
		return verdict{caught: true, what: isCaught}
	case r.timedOut:
		return verdict{what: hung, output: r.output}
	case r.failed:
		return verdict{caught: true, what: isCaught}
	}
	return verdict{what: broken, output: r.output}
}

// baseline checks that a test passes without any mutant.
func (l *lab) baseline(ctx context.Context, t mutants.Test) error {
	l.mu.Lock()
	b, test := l.builds[t.Package], l.baselines[t]
	if b == nil {
		b = &once{path: filepath.Join(l.dir, strings.ReplaceAll(t.Package, "/", "-")+".test")}
		l.builds[t.Package] = b
	}
	if test == nil {
		test = &once{}
		l.baselines[t] = test
	}
	l.mu.Unlock()
	b.Do(func() { b.err = l.build(ctx, t, b.path) })
	if b.err != nil {
		return b.err
	}
	test.Do(func() {
		if r := l.run(ctx, b.path, t); !r.passed {
			test.err = errors.New(r.output)
		}
	})
	return test.err
}

// mutated builds the test of m with its change, and nothing else changed.
func (l *lab) mutated(ctx context.Context, m mutants.Mutant, dir string) (string, error) {
	text, err := m.Mutate(l.root)
	if err != nil {
		return "", err
	}
	source := filepath.Join(dir, filepath.Base(m.File))
	overlay, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(l.root, filepath.FromSlash(m.File)): source},
	})
	if err != nil {
		return "", err
	}
	file, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "mutant.test")
	if err := errors.Join(os.WriteFile(source, text, 0o600), os.WriteFile(file, overlay, 0o600)); err != nil {
		return "", err
	}
	return binary, l.build(ctx, m.Test, binary, "-overlay="+file)
}

// build compiles the tests of t's package.
func (l *lab) build(ctx context.Context, t mutants.Test, binary string, flags ...string) error {
	dir, pkg := t.Module()
	args := append([]string{"test", "-c", "-ldflags=-s -w", "-o", binary}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = filepath.Join(l.root, dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

// result is how a test ended.
type result struct {
	passed, failed, timedOut bool // none of them: it did neither, as when it panicked
	output                   string
}

// run runs one test of a binary.
func (l *lab) run(ctx context.Context, binary string, t mutants.Test) result {
	ctx, cancel := context.WithTimeout(ctx, l.timeout+30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.run="+pattern(t.Name), "-test.count=1", "-test.v",
		"-test.timeout="+l.timeout.String())
	cmd.Dir = filepath.Join(l.root, filepath.FromSlash(t.Package))
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	r := result{output: out.String()}
	r.timedOut = strings.Contains(r.output, "panic: test timed out")
	panicked := strings.Contains(r.output, "\npanic: ") || strings.HasPrefix(r.output, "panic: ")
	r.passed = err == nil && has(r.output, "PASS", t.Name)
	r.failed = err != nil && !panicked && has(r.output, "FAIL", t.Name)
	return r
}

// has tells whether the output of tests says that of the test with that name.
func has(output, what, name string) bool {
	return regexp.MustCompile(`(?m)^ *--- ` + what + `: ` + regexp.QuoteMeta(underscored(name)) + ` \(`).MatchString(output)
}

// pattern returns the value of -test.run for one test.
func pattern(name string) string {
	parts := strings.Split(underscored(name), "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

// underscored returns the name of a subtest as package testing writes it.
func underscored(name string) string { return strings.ReplaceAll(name, " ", "_") }
