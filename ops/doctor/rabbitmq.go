package doctor

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/boxpair/boxpair/internal/management"
)

// administratorError says that RabbitMQ answers a request of administrators only.
type administratorError struct{ what, command string }

func (e *administratorError) Error() string {
	return "RabbitMQ tells its " + e.what + " only to a user with the tag administrator"
}

// broker is a virtual host as described by RabbitMQ's management API.
type broker struct {
	*management.API

	queues      []queue
	exchanges   []exchange
	bindings    []binding
	consumers   []subscription
	connections []connection
	hidden      error // why the connections could not be read
}

type queue struct {
	Name       string              `json:"name"`
	Type       string              `json:"type"`
	Durable    bool                `json:"durable"`
	AutoDelete bool                `json:"auto_delete"`
	Exclusive  bool                `json:"exclusive"`
	Arguments  management.Settings `json:"arguments"`
	// Effective and Messages are nil until the broker has statistics of the queue.
	Effective *management.Settings `json:"effective_policy_definition"`
	Messages  *int64               `json:"messages"`
}

type exchange struct {
	Name       string              `json:"name"`
	Durable    bool                `json:"durable"`
	AutoDelete bool                `json:"auto_delete"`
	Arguments  management.Settings `json:"arguments"`
	Policy     string              `json:"policy"`
}

type binding struct {
	Source string `json:"source"`
}

type subscription struct {
	Queue struct {
		Name string `json:"name"`
	} `json:"queue"`
	Channel struct {
		User       string `json:"user"`
		Connection string `json:"connection_name"`
	} `json:"channel_details"`
}

type connection struct {
	Name   string              `json:"name"`
	User   string              `json:"user"`
	VHost  string              `json:"vhost"`
	Client management.Settings `json:"client_properties"`
}

// rabbitMQ does the checks of RabbitMQ.
func (r *run) rabbitMQ(ctx context.Context) {
	m := &r.cfg.Management
	api, err := management.New(m.URL, m.VHost, m.Client)
	if err != nil {
		r.failed(Reach, "RabbitMQ", err)
		return
	}
	b := &broker{API: api}
	for _, list := range []struct {
		name string
		into any
	}{{"queues", &b.queues}, {"exchanges", &b.exchanges}, {"bindings", &b.bindings}, {"consumers", &b.consumers}} {
		there, err := b.Get(ctx, list.into, list.name, b.VHost)
		if err != nil {
			r.failed(Reach, "RabbitMQ", err)
			return
		}
		if !there {
			r.add(Reach, NotChecked, "RabbitMQ", fmt.Sprintf("%s: there is no virtual host %q, or no management API", b.Host, b.VHost),
				"rabbitmqctl list_vhosts; then boxpair doctor --management URL --vhost NAME")
			return
		}
	}
	r.otherHosts(ctx, b)
	r.nodes(ctx, b)
	r.featureFlags(ctx, b)
	r.exchanges(ctx, b)
	b.hidden = b.get(ctx, &b.connections, "connections")
	r.queues(ctx, b)
	r.rights(ctx, b)
}

// otherHosts looks for queues in other virtual hosts if there is none here.
func (r *run) otherHosts(ctx context.Context, b *broker) {
	if len(b.queues) > 0 {
		return
	}
	subject := fmt.Sprintf("virtual host %q", b.VHost)
	var all []struct{ VHost string }
	if err := b.get(ctx, &all, "queues"); err != nil {
		r.failed(Missing, subject, err)
		return
	}
	have := make(map[string]bool)
	for _, q := range all {
		have[q.VHost] = true
	}
	if names := sortedKeys(have); len(names) > 0 {
		r.add(Missing, NotChecked, subject, "it has no queues, and other virtual hosts have: "+strings.Join(names[:min(len(names), mostNamed)], ", "),
			"boxpair doctor --management URL --vhost NAME")
	}
}

// get reads a list that needs further rights.
func (b *broker) get(ctx context.Context, v any, path ...string) error {
	there, err := b.Get(ctx, v, path...)
	if err == nil && !there {
		err = fmt.Errorf("%s: the management API has no %s", b.Host, path[0])
	}
	return err
}

func (r *run) nodes(ctx context.Context, b *broker) {
	var nodes []struct {
		Name       string   `json:"name"`
		Running    bool     `json:"running"`
		Memory     bool     `json:"mem_alarm"`
		Disk       bool     `json:"disk_free_alarm"`
		Partitions []string `json:"partitions"`
	}
	if err := b.get(ctx, &nodes, "nodes"); err != nil {
		r.failed(Alarms, "RabbitMQ", err)
		return
	}
	for _, n := range nodes {
		subject := "node " + n.Name
		switch {
		case !n.Running:
			r.add(Alarms, Stalls, subject, "the node does not run: queues without a majority, and classic queues of the node, take nothing", "start the node, or rabbitmqctl forget_cluster_node "+n.Name)
		case len(n.Partitions) > 0:
			r.add(Alarms, Loses, subject, "the node is cut off from "+strings.Join(n.Partitions, ", ")+": sides of the cluster go on by themselves", "restart the smaller side; set cluster_partition_handling = pause_minority")
		}
		if n.Memory {
			r.add(Alarms, Stalls, subject, "the alarm of memory is on: the cluster takes no message", "shorten queues, give memory, or rabbitmqctl set_vm_memory_high_watermark 0.6")
		}
		if n.Disk {
			r.add(Alarms, Stalls, subject, "the alarm of free disk space is on: the cluster takes no message", "free disk space, or rabbitmqctl set_disk_free_limit 1GB")
		}
	}
}

func (r *run) featureFlags(ctx context.Context, b *broker) {
	var flags []struct{ Name, State, Stability string }
	err := b.get(ctx, &flags, "feature-flags")
	if errors.Is(err, management.ErrDenied) {
		err = &administratorError{"feature flags", "rabbitmqctl list_feature_flags"}
	}
	if err != nil {
		r.failed(FeatureFlags, "RabbitMQ", err)
		return
	}
	var off []string
	for _, f := range flags {
		if f.State == "disabled" && f.Stability != "experimental" {
			off = append(off, f.Name)
		}
	}
	if len(off) > 0 {
		r.add(FeatureFlags, Advice, "RabbitMQ", "feature flags are disabled: "+strings.Join(off, ", ")+"; a later version that requires them will not start", "rabbitmqctl enable_feature_flag all")
	}
}

// exchanges judges exchanges and their bindings.
func (r *run) exchanges(ctx context.Context, b *broker) {
	chosen := func(e *exchange) bool {
		if len(r.cfg.Exchanges) > 0 {
			return slices.Contains(r.cfg.Exchanges, e.Name)
		}
		return e.Name != "" && !strings.HasPrefix(e.Name, "amq.")
	}
	for _, name := range r.cfg.Exchanges {
		if !slices.ContainsFunc(b.exchanges, func(e exchange) bool { return e.Name == name }) {
			r.add(Missing, Stalls, fmt.Sprintf("exchange %q", name), "there is none of this name", "start its consumer, or declare it")
		}
	}
	for i := range b.exchanges {
		e := &b.exchanges[i]
		if !chosen(e) {
			continue
		}
		subject := fmt.Sprintf("exchange %q", e.Name)
		if !e.Durable {
			r.add(Durable, Stalls, subject, "the exchange and its bindings are gone after a restart of the broker: events wait", "delete it and declare it as durable")
		}
		if e.AutoDelete {
			r.add(AutoDelete, Stalls, subject, "the exchange is deleted with its last binding", "delete it and declare it without auto-delete")
		}
		if !slices.Contains(b.bindings, binding{e.Name}) && e.Name != "" {
			r.add(Unbound, Stalls, subject, "nothing is bound to it: RabbitMQ returns what is sent there, and the events wait", "start its consumers, or bind a queue; rabbitmqctl list_bindings -p "+shell(b.VHost))
		}
		r.alternate(ctx, b, e)
	}
}

// alternate looks for an alternate exchange, by argument or policy: RabbitMQ confirms unroutable
// messages for an alternate exchange, instead of returning them.
func (r *run) alternate(ctx context.Context, b *broker, e *exchange) {
	name, set := e.Arguments["alternate-exchange"].(string)
	remedy := "delete the exchange and declare it without alternate-exchange"
	if !set && e.Policy != "" {
		var policy struct{ Definition management.Settings }
		if err := b.get(ctx, &policy, "policies", b.VHost, e.Policy); err != nil {
			r.failed(AlternateExchange, fmt.Sprintf("exchange %q", e.Name), err)
			return
		}
		name, set = policy.Definition["alternate-exchange"].(string)
		remedy = fmt.Sprintf("take alternate-exchange out of the policy: rabbitmqctl list_policies -p %s; rabbitmqctl clear_policy -p %[1]s %s", shell(b.VHost), shell(e.Policy))
	}
	if set {
		r.add(AlternateExchange, Loses, fmt.Sprintf("exchange %q", e.Name), fmt.Sprintf("what no queue takes goes to the exchange %q and is confirmed: a relay takes it for delivered", name), remedy)
	}
}

// permission holds the rights of a user in a virtual host, as regular expressions.
type permission struct {
	User      string `json:"user"`
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`
}

// rights judges the rights of connected users.
func (r *run) rights(ctx context.Context, b *broker) {
	if b.hidden != nil {
		r.failed(RightsWide, "RabbitMQ", b.hidden)
		return
	}
	var permissions []permission
	err := b.get(ctx, &permissions, "permissions")
	if errors.Is(err, management.ErrDenied) {
		err = &administratorError{"permissions", "rabbitmqctl list_permissions -p " + shell(b.VHost)}
	}
	if err != nil {
		r.failed(RightsWide, "RabbitMQ", err)
		return
	}
	users := make(map[string]bool)
	for _, c := range b.connections {
		if c.VHost == b.VHost {
			users[c.User] = true
		}
	}
	for _, user := range sortedKeys(users) {
		at := slices.IndexFunc(permissions, func(p permission) bool { return p.User == user })
		if at < 0 {
			r.add(RightsNarrow, Stalls, "user "+user, fmt.Sprintf("the user is connected and has no rights in the virtual host %q any more", b.VHost), fmt.Sprintf("rabbitmqctl set_permissions -p %s %s …", shell(b.VHost), shell(user)))
			continue
		}
		r.userRights(b, &permissions[at])
	}
}

func (r *run) userRights(b *broker, p *permission) {
	subject := "user " + p.User
	allows := func(pattern string) func(name string) bool {
		expression, err := regexp.Compile(pattern)
		if err != nil {
			r.failed(RightsNarrow, subject, fmt.Errorf("the expression %q is not understood: %w", pattern, err))
			return func(string) bool { return true }
		}
		return func(name string) bool { return pattern != "" && expression.MatchString(name) }
	}
	set := func(configure, write, read string) string {
		return fmt.Sprintf("rabbitmqctl set_permissions -p %s %s %s %s %s", shell(b.VHost), shell(p.User), shell(configure), shell(write), shell(read))
	}
	write, read := allows(p.Write), allows(p.Read)
	if regexp.MustCompile(`^\^?(\.\*)?\$?$`).MatchString(p.Configure) && strings.Contains(p.Configure, ".*") {
		r.add(RightsWide, Advice, subject, "the user is connected and may declare and delete every queue and exchange", "let a deployment declare them (Topology: amqp.Passive), and "+set("^$", p.Write, p.Read))
	}
	writes := slices.ContainsFunc(b.exchanges, func(e exchange) bool {
		if e.Name == "" {
			return write("amq.default")
		}
		return write(e.Name)
	})
	reads := slices.ContainsFunc(b.queues, func(q queue) bool { return read(q.Name) })
	if !writes && !reads {
		r.add(RightsNarrow, Stalls, subject, "the user is connected, and may neither write to an exchange nor read a queue that exists", set(p.Configure, "^EXCHANGE$", "^QUEUE$"))
	}
	for _, s := range b.consumers {
		if s.Channel.User == p.User && !read(s.Queue.Name) {
			r.add(RightsNarrow, Stalls, subject, fmt.Sprintf("the user consumes the queue %q and may not read it any more: its next connection will not", s.Queue.Name),
				set(p.Configure, p.Write, "^"+regexp.QuoteMeta(s.Queue.Name)+"$"))
		}
	}
}
