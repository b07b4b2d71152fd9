package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/boxpair/boxpair/health"
)

// manifest is the part of a Kubernetes object that this test reads.
type manifest struct {
	Kind       string
	StringData map[string]string `yaml:"stringData"`
	Metadata   struct {
		Name   string
		Labels map[string]string
	}
	Spec struct {
		Replicas    int
		PodSelector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		} `yaml:"podSelector"`
		Ingress, Egress []rules
		Strategy        struct {
			RollingUpdate struct {
				MaxUnavailable *int `yaml:"maxUnavailable"`
			} `yaml:"rollingUpdate"`
		}
		Template struct{ Spec pod }
	}
}

type pod struct {
	Grace      int `yaml:"terminationGracePeriodSeconds"`
	Containers []container
}

// rules are a part of a NetworkPolicy.
type rules struct{ Ports []port }

type port struct{ Port int }

type container struct {
	Image string
	Args  []string
	Env   []struct {
		Name      string
		ValueFrom struct {
			SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
		} `yaml:"valueFrom"`
	}
	Ports []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	LivenessProbe  probe `yaml:"livenessProbe"`
	ReadinessProbe probe `yaml:"readinessProbe"`
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

func manifests(t *testing.T, name string) map[string]*manifest {
	t.Helper()
	text, err := os.ReadFile("../../examples/kubernetes/" + name)
	ok(t, err)
	byKind := make(map[string]*manifest)
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		m := &manifest{}
		err := decoder.Decode(m)
		if errors.Is(err, io.EOF) {
			return byKind
		}
		ok(t, err)
		byKind[m.Kind] = m
	}
}

// TestManifestOfKubernetesFitsTheRelay reads the settings of examples/kubernetes/relay.yaml as the
// relay does, and calls its endpoints as the probes do.
func TestManifestOfKubernetesFitsTheRelay(t *testing.T) {
	t.Parallel()
	all := manifests(t, "relay.yaml")
	secret, deployment := all["Secret"], all["Deployment"]
	if secret == nil || deployment == nil || len(deployment.Spec.Template.Spec.Containers) != 1 || all["PodDisruptionBudget"] == nil {
		t.Fatalf("an object is missing among %v", all)
	}
	c := &deployment.Spec.Template.Spec.Containers[0]
	env := environmentOf(t, c, secret)
	s := newSettings(&process{stderr: io.Discard, getenv: func(name string) string { return env[name] }}, &secrets{})
	r := settingsOfRelay(t, s, c.Args)
	for name := range env {
		if !slices.ContainsFunc(s.list, func(s setting) bool { return s.env == name }) {
			t.Errorf("the relay has no setting %s", name)
		}
	}
	ok(t, r.check())
	if deployment.Spec.Replicas < 2 || deployment.Spec.Strategy.RollingUpdate.MaxUnavailable == nil || *deployment.Spec.Strategy.RollingUpdate.MaxUnavailable != 0 {
		t.Error("a rollout may leave no relay")
	}
	if len(c.Ports) != 1 || r.listen != fmt.Sprintf(":%d", c.Ports[0].ContainerPort) || c.LivenessProbe.HTTPGet.Port != c.Ports[0].Name ||
		c.ReadinessProbe.HTTPGet.Port != c.Ports[0].Name {
		t.Errorf("the relay listens at %s, the container at %+v, the probes look at %+v and %+v", r.listen, c.Ports, c.LivenessProbe, c.ReadinessProbe)
	}
	needed := spanOf(t, s, "shutdown-timeout", r.config.ShutdownTimeout) + spanOf(t, s, "lease", r.config.LeaseTTL)
	if grace := time.Duration(deployment.Spec.Template.Spec.Grace) * time.Second; grace <= needed {
		t.Errorf("it is killed after %v, and may need %v to stop", grace, needed)
	}
	if got := answers(t, c.LivenessProbe.HTTPGet.Path, c.ReadinessProbe.HTTPGet.Path); !slices.Equal(got, []int{http.StatusOK, http.StatusServiceUnavailable}) {
		t.Errorf("the probes of a relay that is not ready get %v", got)
	}
}

// environmentOf returns a container's variables, with their values from a secret.
func environmentOf(t *testing.T, c *container, secret *manifest) map[string]string {
	t.Helper()
	env := make(map[string]string)
	for _, e := range c.Env {
		ref := e.ValueFrom.SecretKeyRef
		if env[e.Name] = secret.StringData[ref.Key]; env[e.Name] == "" || ref.Name != secret.Metadata.Name {
			t.Errorf("%s: there is no secret %+v", e.Name, ref)
		}
	}
	return env
}

// settingsOfRelay parses a command line of the relay.
func settingsOfRelay(t *testing.T, s *settings, args []string) *relaying {
	t.Helper()
	if len(args) == 0 || args[0] != relayCommand.name {
		t.Fatalf("the command is %q", args)
	}
	r := newRelaying(s)
	ok(t, s.flags.Parse(args[1:]))
	ok(t, s.complete())
	return r
}

// spanOf returns the value of a setting of type duration, or its default.
func spanOf(t *testing.T, s *settings, name string, given time.Duration) time.Duration {
	t.Helper()
	i := slices.IndexFunc(s.list, func(s setting) bool { return s.flag == name })
	found := regexp.MustCompile(`Defaults to (\w+)\.`).FindStringSubmatch(s.list[i].usage)
	d, err := time.ParseDuration(found[1])
	ok(t, err)
	if given > 0 {
		return given
	}
	return d
}

// answers calls the endpoints of a relay that runs and is not ready.
func answers(t *testing.T, paths ...string) (list []int) {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	ok(t, err)
	defer serve(listener, health.Handler(nil, func(context.Context) []string { return []string{"broker: away"} }))()
	d := &daemon{health: listener.Addr().String()}
	for _, path := range paths {
		status, _ := d.get(t, path)
		list = append(list, status)
	}
	return list
}

// TestExamplesInYAMLCanBeRead reads the other YAML files that users copy.
func TestExamplesInYAMLCanBeRead(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("../../examples/*/*.yaml")
	ok(t, err)
	if len(paths) < 2 {
		t.Errorf("there are only %q", paths)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		ok(t, err)
		var parsed map[string]any
		ok(t, yaml.Unmarshal(text, &parsed))
	}
}

// TestOtherManifestsFitTheProgram reads the migration's Job, the network's policy and the list of
// manifests.
func TestOtherManifestsFitTheProgram(t *testing.T) {
	t.Parallel()
	migrating, relaying := manifests(t, "migrate.yaml"), manifests(t, "relay.yaml")
	secret, job := migrating["Secret"], migrating["Job"]
	if secret == nil || job == nil || len(job.Spec.Template.Spec.Containers) != 1 {
		t.Fatalf("an object is missing among %v", migrating)
	}
	c := &job.Spec.Template.Spec.Containers[0]
	expectSettings(t, "migrate.yaml", c.Args, environmentOf(t, c, secret))
	relay := relaying["Deployment"]
	if image := relay.Spec.Template.Spec.Containers[0].Image; c.Image != image || !strings.HasSuffix(job.Metadata.Name, image[strings.LastIndex(image, ":")+1:]) {
		t.Errorf("the relay runs %s, the job %s runs %s", image, job.Metadata.Name, c.Image)
	}
	policy := manifests(t, "network.yaml")["NetworkPolicy"]
	ports := relay.Spec.Template.Spec.Containers[0].Ports
	if policy == nil || policy.Spec.PodSelector.MatchLabels["app"] != relay.Metadata.Labels["app"] || len(policy.Spec.Ingress) != 1 ||
		policy.Spec.Ingress[0].Ports[0].Port != ports[0].ContainerPort {
		t.Errorf("the policy %+v is not one for %+v", policy, ports)
	}
	for _, secret := range []*manifest{secret, relaying["Secret"]} {
		for _, text := range secret.StringData {
			u, err := url.Parse(text)
			ok(t, err)
			if !slices.ContainsFunc(policy.Spec.Egress, func(r rules) bool {
				return slices.ContainsFunc(r.Ports, func(p port) bool { return strconv.Itoa(p.Port) == u.Port() })
			}) {
				t.Errorf("the policy does not let the relay reach port %s", u.Port())
			}
		}
	}
	list := parsed[struct {
		Resources []string
		Images    []struct{ Name string }
	}](t, "examples/kubernetes/kustomization.yaml")
	for _, name := range list.Resources {
		_ = readFile(t, "examples/kubernetes/"+name)
	}
	if len(list.Resources) != 3 || len(list.Images) != 1 || !strings.HasPrefix(c.Image, list.Images[0].Name+":") {
		t.Errorf("the list is %+v", list)
	}
}
