package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// root is the directory of the repository.
const root = "../.."

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	ok(t, err)
	return string(text)
}

// parsed reads a YAML file of the repository.
func parsed[T any](t *testing.T, path string) (to T) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(readFile(t, path)), &to); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return to
}

// shopImage is the image of the services in docker-compose.yml.
const shopImage = "examples/shop/Dockerfile"

// TestImageHoldsTheProgramAlone checks the Dockerfiles: what they build from is pinned, and the last
// stage begins with nothing, so without a shell, and ends as an account that is not root.
func TestImageHoldsTheProgramAlone(t *testing.T) {
	t.Parallel()
	for path, program := range map[string]string{"Dockerfile": "boxpair", shopImage: "shop"} {
		t.Run(program, func(t *testing.T) { holdsAlone(t, path, program) })
	}
}

func holdsAlone(t *testing.T, path, program string) {
	text := strings.ReplaceAll(readFile(t, path), "\\\n", "")
	pinned := regexp.MustCompile(`^FROM (--\S+ )?\S+:[\w.-]+@sha256:[0-9a-f]{64}( AS \w+)?$`)
	version := regexp.MustCompile(`:latest\b`)
	var user, entrypoint string
	var stages []string
	for line := range strings.SplitSeq(text, "\n") {
		instruction, rest, _ := strings.Cut(line, " ")
		switch instruction {
		case "FROM":
			stages, user, entrypoint = append(stages, rest), "", ""
			if rest != "scratch" && !pinned.MatchString(line) || version.MatchString(line) {
				t.Errorf("not pinned: %s", line)
			}
		case "USER":
			user = rest
		case "ENTRYPOINT":
			entrypoint = rest
		case "RUN":
			if stages[len(stages)-1] == "scratch" {
				t.Errorf("the last stage runs a command: %s", line)
			}
		}
	}
	if len(stages) != 2 || stages[1] != "scratch" {
		t.Errorf("the stages are %q", stages)
	}
	if !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(user) {
		t.Errorf("the account is %q", user)
	}
	if entrypoint != `["/`+program+`"]` {
		t.Errorf("the image starts %q", entrypoint)
	}
}

// TestImageKnowsItsVersion builds the program with the flags of the Dockerfile.
func TestImageKnowsItsVersion(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"Dockerfile", ".ci/binaries"} {
		if !strings.Contains(readFile(t, path), "-X main.release=$") {
			t.Errorf("%s does not set the version", path)
		}
	}
	built := filepath.Join(t.TempDir(), "boxpair")
	flags := regexp.MustCompile(`-ldflags "(.*?)"`).FindStringSubmatch(readFile(t, "Dockerfile"))
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", strings.ReplaceAll(flags[1], "$VERSION", "v1.2.3"), "-o", built, ".")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), built, "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "boxpair v1.2.3, go") {
		t.Errorf("%q, %v", out, err)
	}
}

// TestImageIsBuiltFromWhatTheProgramNeeds checks that .dockerignore leaves out no directory with a
// package of the program.
func TestImageIsBuiltFromWhatTheProgramNeeds(t *testing.T) {
	t.Parallel()
	for ignored, dir := range map[string]string{".dockerignore": "cmd/boxpair", shopImage + ".dockerignore": "examples/shop"} {
		t.Run(dir, func(t *testing.T) { isBuiltFrom(t, ignored, dir) })
	}
}

func isBuiltFrom(t *testing.T, ignored, dir string) {
	const module = "github.com/boxpair/boxpair/"
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", ".")
	list.Dir = filepath.Join(root, dir)
	out, err := list.Output()
	ok(t, err)
	kept := strings.Split(readFile(t, ignored), "\n")
	n := 0
	for path := range strings.FieldsSeq(string(out)) {
		name, is := strings.CutPrefix(path, module)
		if !is {
			continue
		}
		n++
		if first, _, _ := strings.Cut(name, "/"); !slices.Contains(kept, "!"+first) && !slices.Contains(kept, "!"+name) {
			t.Errorf("%s is left out", path)
		}
	}
	if n < 10 {
		t.Errorf("the program has only %d packages of the library", n)
	}
}

// composed is the part of docker-compose.yml that these tests read.
type composed struct {
	Services map[string]struct {
		Image       string
		Build       recipe
		Command     yaml.Node
		Environment map[string]string
		Volumes     []string
		DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
		Healthcheck yaml.Node
	}
	Volumes map[string]any
}

// recipe is where an image is built: a directory, or a mapping.
type recipe struct{ Context, Dockerfile string }

// UnmarshalYAML implements [yaml.Unmarshaler].
func (r *recipe) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		r.Dockerfile = "Dockerfile"
		return node.Decode(&r.Context)
	}
	type plain recipe
	return node.Decode((*plain)(r))
}

// TestComposeFileRefersToWhatIsThere checks files, services and settings in docker-compose.yml.
func TestComposeFileRefersToWhatIsThere(t *testing.T) {
	t.Parallel()
	file := parsed[composed](t, "docker-compose.yml")
	for _, name := range []string{"postgres", "rabbitmq", "migrate", "relay", "dashboard", "orders", "stock", "payment", "prometheus", "grafana"} {
		if _, is := file.Services[name]; !is {
			t.Errorf("there is no service %s", name)
		}
	}
	for name, service := range file.Services {
		if (service.Image == "") == (service.Build == recipe{}) || service.Image == "" && service.Build.Context != "." || strings.HasSuffix(service.Image, ":latest") ||
			service.Image != "" && !strings.Contains(service.Image, ":") {
			t.Errorf("%s: the image is %q, built in %v", name, service.Image, service.Build)
		}
		for on, how := range service.DependsOn {
			other, is := file.Services[on]
			if !is || how.Condition == "service_healthy" && other.Healthcheck.IsZero() {
				t.Errorf("%s depends on %s, which is missing or has no health check", name, on)
			}
		}
		for _, volume := range service.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			if _, named := file.Volumes[source]; named {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, source)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		var args []string
		switch service.Build.Dockerfile {
		case "Dockerfile":
			ok(t, service.Command.Decode(&args))
			expectSettings(t, name, args, service.Environment)
		case shopImage:
			ok(t, service.Command.Decode(&args))
			expectShop(t, args, service.Environment)
		case "":
		default:
			t.Errorf("%s is built from %s", name, service.Build.Dockerfile)
		}
	}
	for _, path := range regexp.MustCompile(`/etc/prometheus/rules/(\S+?)[\],]`).FindAllStringSubmatch(readFile(t, "examples/compose/prometheus.yml"), -1) {
		_ = readFile(t, "examples/prometheus/"+path[1])
	}
}

// expectShop checks that the shop has a service, and reads all variables and no others.
func expectShop(t *testing.T, args []string, env map[string]string) {
	t.Helper()
	source := readFile(t, "examples/shop/main.go")
	if len(args) != 1 || !strings.Contains(source, "\n\t\""+args[0]+"\": {") {
		t.Errorf("the shop has no service %q", args)
	}
	read := regexp.MustCompile(`os\.Getenv\("(\w+)"\)`).FindAllStringSubmatch(source, -1)
	for _, name := range read {
		if env[name[1]] == "" {
			t.Errorf("%s: %s is not set", args, name[1])
		}
	}
	if len(read) != len(env) {
		t.Errorf("%s: of %v the shop reads %v", args, env, read)
	}
}

// expectSettings checks that a command line of this program with variables is understood.
func expectSettings(t *testing.T, where string, args []string, env map[string]string) *settings {
	t.Helper()
	for i := range commands {
		words := strings.Fields(commands[i].name)
		if len(args) < len(words) || !slices.Equal(args[:len(words)], words) {
			continue
		}
		var names []string
		for name := range env {
			names = append(names, name+"=x")
		}
		s := newSettings(&process{stderr: io.Discard, getenv: func(name string) string { return env[name] }, environ: func() []string { return names }}, &secrets{})
		commands[i].define(s)
		if err := s.flags.Parse(args[len(words):]); err != nil {
			t.Errorf("%s: %v", where, err)
		}
		if err := s.complete(); err != nil {
			t.Errorf("%s: %v", where, err)
		}
		for name := range env {
			if !slices.ContainsFunc(s.list, func(one setting) bool { return one.env == name }) {
				t.Errorf("%s: boxpair %s has no setting %s", where, commands[i].name, name)
			}
		}
		return s
	}
	t.Fatalf("%s: there is no command %q", where, args)
	return nil
}

// TestUnitOfSystemdFitsTheRelay checks the unit, also with systemd-analyze if it is installed, and
// reads its settings as the relay does.
func TestUnitOfSystemdFitsTheRelay(t *testing.T) {
	t.Parallel()
	const path = "examples/systemd/boxpair-relay.service"
	unit := make(map[string]string)
	for line := range strings.SplitSeq(readFile(t, path), "\n") {
		if key, value, found := strings.Cut(line, "="); found && !strings.HasPrefix(line, "#") {
			unit[key] = value
		}
	}
	env := make(map[string]string)
	for line := range strings.SplitSeq(strings.TrimSpace(readFile(t, "examples/systemd/relay.env")), "\n") {
		if name, value, found := strings.Cut(line, "="); found && !strings.HasPrefix(line, "#") {
			env[name] = value
		}
	}
	start := strings.Fields(unit["ExecStart"])
	if len(start) < 2 || filepath.Base(start[0]) != "boxpair" || unit["EnvironmentFile"] != "/etc/boxpair/relay.env" {
		t.Fatalf("the unit starts %q with %s", start, unit["EnvironmentFile"])
	}
	s := expectSettings(t, path, start[1:], env)
	needed := spanOf(t, s, "shutdown-timeout", 0) + spanOf(t, s, "lease", 0)
	if limit, err := period(unit["TimeoutStopSec"] + "s"); err != nil || limit <= needed || unit["KillSignal"] != "SIGTERM" {
		t.Errorf("it is killed after %v, %v, and may need %v to stop; its signal is %s", limit, err, needed, unit["KillSignal"])
	}
	if unit["DynamicUser"] != "yes" || unit["NoNewPrivileges"] != "yes" || unit["ProtectSystem"] != "strict" {
		t.Errorf("the unit has more rights than it needs: %v", unit)
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		return
	}
	// The program need not be installed where the test runs.
	text := strings.ReplaceAll(readFile(t, path), start[0], program)
	copied := filepath.Join(t.TempDir(), filepath.Base(path))
	ok(t, os.WriteFile(copied, []byte(text), 0o600))
	if out, err := exec.CommandContext(t.Context(), analyze, "verify", copied).CombinedOutput(); err != nil || strings.Contains(string(out), filepath.Base(path)) {
		t.Errorf("%v: %s", err, out)
	}
}

// TestWorkflowsArePinned reads the workflows of GitHub: every action is pinned by its commit, and
// the scripts that steps run exist.
func TestWorkflowsArePinned(t *testing.T) {
	t.Parallel()
	type workflow struct {
		On, Permissions yaml.Node
		Jobs            map[string]struct {
			RunsOn  string `yaml:"runs-on"`
			Timeout int    `yaml:"timeout-minutes"`
			Steps   []struct{ Uses, Run string }
		}
	}
	pinned := regexp.MustCompile(`^[\w.-]+(/[\w.-]+)+@[0-9a-f]{40}$`)
	script := regexp.MustCompile(`(?m)^\s*(\.ci/\w+)`)
	paths, err := filepath.Glob(root + "/.github/workflows/*.yml")
	ok(t, err)
	if len(paths) < 2 {
		t.Errorf("there are only %q", paths)
	}
	for _, path := range paths {
		path = strings.TrimPrefix(path, root+"/")
		flow := parsed[workflow](t, path)
		if flow.On.IsZero() || flow.Permissions.IsZero() || len(flow.Jobs) == 0 {
			t.Errorf("%s has no events, permissions or jobs", path)
		}
		for name, job := range flow.Jobs {
			if job.RunsOn == "" || job.Timeout == 0 || len(job.Steps) == 0 {
				t.Errorf("%s, %s: no machine, no timeout or no steps", path, name)
			}
			uploads := slices.ContainsFunc(job.Steps, func(s struct{ Uses, Run string }) bool { return strings.Contains(s.Run, "gh release upload") })
			attests := slices.ContainsFunc(job.Steps, func(s struct{ Uses, Run string }) bool { return strings.HasPrefix(s.Uses, "actions/attest-") })
			if uploads && !attests {
				t.Errorf("%s, %s: uploads files of a release without an attestation", path, name)
			}
			for _, step := range job.Steps {
				if (step.Uses == "") == (step.Run == "") || step.Uses != "" && !pinned.MatchString(step.Uses) {
					t.Errorf("%s, %s: the step is %+v", path, name, step)
				}
				for _, run := range script.FindAllStringSubmatch(step.Run, -1) {
					_ = readFile(t, run[1])
				}
			}
		}
	}
}
