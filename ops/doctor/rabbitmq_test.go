package doctor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/internal/testenv/service"
	"github.com/boxpair/boxpair/ops/doctor"
	"github.com/boxpair/boxpair/transport/amqp"
)

// virtual is a virtual host of the test's own.
type virtual struct {
	*testing.T
	node *service.RabbitMQ
	name string
	conn *amqp091.Connection // of the user guest
	ch   *amqp091.Channel    // of conn
	cfg  doctor.Config
}

func newVirtual(t *testing.T, node *service.RabbitMQ) *virtual {
	t.Helper()
	v := &virtual{T: t, node: node, name: testenv.Name(t)}
	v.put("vhosts/"+v.name, map[string]any{})
	v.allow("guest", ".*", ".*", ".*")
	v.conn, v.ch = v.dial("guest", "guest")
	v.cfg = doctor.Config{Management: amqp.Management{URL: node.ManagementURL(), VHost: v.name}}
	return v
}

// put writes an object by the management API.
func (v *virtual) put(path string, body any) {
	v.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		v.Fatal(err)
	}
	request, err := http.NewRequestWithContext(v.Context(), http.MethodPut, v.node.ManagementURL()+"/api/"+path, bytes.NewReader(text))
	if err != nil {
		v.Fatal(err)
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		v.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		said, _ := io.ReadAll(response.Body)
		v.Fatalf("PUT %s: %s: %s", path, response.Status, said)
	}
}

// allow gives a user rights.
func (v *virtual) allow(user, configure, write, read string) {
	v.Helper()
	v.put("permissions/"+v.name+"/"+user, map[string]any{"configure": configure, "write": write, "read": read})
}

// user makes a user with rights, and returns its name, which is its password too.
func (v *virtual) user(tags, configure, write, read string) string {
	v.Helper()
	name := testenv.Name(v.T)
	v.put("users/"+name, map[string]any{"password": name, "tags": tags})
	v.allow(name, configure, write, read)
	return name
}

// policy sets a policy for a queue or an exchange.
func (v *virtual) policy(name string, definition map[string]any) {
	v.Helper()
	v.put("policies/"+v.name+"/"+name, map[string]any{"pattern": "^" + name + "$", "definition": definition, "apply-to": "all"})
}

func (v *virtual) channel(user string) *amqp091.Channel {
	v.Helper()
	_, ch := v.dial(user, user)
	return ch
}

func (v *virtual) dial(user, password string) (*amqp091.Connection, *amqp091.Channel) {
	v.Helper()
	conn, err := amqp091.Dial(v.address(user, password))
	if err != nil {
		v.Fatal(err)
	}
	v.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		v.Fatal(err)
	}
	return conn, ch
}

// address returns the address of the virtual host.
func (v *virtual) address(user, password string) string {
	v.Helper()
	u, err := url.Parse(v.node.URL())
	v.must(err)
	u.User, u.Path = url.UserPassword(user, password), "/"+v.name
	return u.String()
}

func (v *virtual) must(err error) {
	v.Helper()
	if err != nil {
		v.Fatal(err)
	}
}

// declare declares a durable queue.
func (v *virtual) declare(name, kind string, args amqp091.Table) {
	v.Helper()
	table := amqp091.Table{"x-queue-type": kind}
	for k, value := range args {
		table[k] = value
	}
	_, err := v.ch.QueueDeclare(name, true, false, false, false, table)
	v.must(err)
}

// known waits until RabbitMQ has statistics of all queues.
func (v *virtual) known() {
	v.Helper()
	settled(v.T, v.cfg, func(found []doctor.Finding) bool { return !has(found, doctor.Reach, doctor.NotChecked) })
}

// settled waits until the findings are as they shall be.
func settled(t *testing.T, cfg doctor.Config, ok func([]doctor.Finding) bool) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		found := examine(t, cfg)
		if ok(found) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("still found:\n%s", lines(found))
		}
	}
}

// old tells whether the node has a version with all that later ones have given up: up to 3.11.
func old(t *testing.T, node *service.RabbitMQ) bool {
	t.Helper()
	conn, err := amqp091.Dial(node.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	version, _ := conn.Properties["version"].(string)
	return strings.HasPrefix(version, "3.9.") || strings.HasPrefix(version, "3.10.") || strings.HasPrefix(version, "3.11.")
}

func TestOnABrokerOfItsOwn(t *testing.T) {
	t.Parallel()
	// A node that begins without a feature flag is like one of an older version that was upgraded.
	node, err := service.StartRabbitMQWith(t.Context(), service.RabbitMQConfig{Management: true, Env: []string{
		"RABBITMQ_FEATURE_FLAGS=quorum_queue,stream_queue,implicit_default_bindings,virtual_host_metadata,maintenance_mode_status,user_limits"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	ctl := &testenv.Node{RabbitMQ: node}
	t.Run("feature flags", func(t *testing.T) {
		v := newVirtual(t, node)
		if old(t, node) { // later versions require the flag
			want(t, examine(t, v.cfg), doctor.FeatureFlags, doctor.Advice, "drop_unroutable_metric", "rabbitmqctl enable_feature_flag all")
		}
		ctl.Ctl(t, "enable_feature_flag", "all")
		none(t, examine(t, v.cfg), doctor.FeatureFlags)
	})
	t.Run("virtual hosts", func(t *testing.T) {
		t.Run("healthy broker gives no finding", func(t *testing.T) { t.Parallel(); healthyBroker(t, node) })
		t.Run("queues", func(t *testing.T) { t.Parallel(); troubledQueues(t, node) })
		t.Run("exchanges", func(t *testing.T) { t.Parallel(); troubledExchanges(t, node) })
		t.Run("consumers", func(t *testing.T) { t.Parallel(); troubledConsumers(t, node) })
		t.Run("rights", func(t *testing.T) { t.Parallel(); troubledRights(t, node) })
	})
	t.Run("alarms", func(t *testing.T) {
		v := newVirtual(t, node)
		none(t, examine(t, v.cfg), doctor.Alarms)
		ctl.Ctl(t, "set_vm_memory_high_watermark", "0")
		await(t, v.cfg, doctor.Alarms, doctor.Stalls, "alarm of memory")
		ctl.Ctl(t, "set_vm_memory_high_watermark", "0.4")
		ctl.Ctl(t, "set_disk_free_limit", "1000000GB")
		await(t, v.cfg, doctor.Alarms, doctor.Stalls, "alarm of free disk space")
		ctl.Ctl(t, "set_disk_free_limit", "1MB")
	})
}

// What the library declares, used with the rights that docs/security.md names, is healthy.
func healthyBroker(t *testing.T, node *service.RabbitMQ) {
	v := newVirtual(t, node)
	subscriber, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(v.address("guest", "guest"), "stock")})
	v.must(err)
	v.must(subscriber.SubscribeInitialize("placed"))
	v.must(subscriber.Close())
	relay, consumer := v.user("", "^$", "^placed$", "^$"), v.user("", "^$", "^$", "^placed(_stock)?$")
	v.channel(relay)
	for range 2 {
		_, err := v.channel(consumer).Consume("placed_stock", "", false, false, false, false, nil)
		v.must(err)
	}
	v.must(v.conn.Close()) // guest may do everything, and stays in the statistics for a moment
	settled(t, v.cfg, func(found []doctor.Finding) bool { return len(found) == 0 })
	v.cfg.Queues, v.cfg.Exchanges = []string{"placed_stock"}, []string{"placed"}
	if found := examine(t, v.cfg); len(found) > 0 {
		t.Errorf("by name:\n%s", lines(found))
	}
}

func troubledQueues(t *testing.T, node *service.RabbitMQ) {
	v := newVirtual(t, node)
	v.declare("limited", "quorum", amqp091.Table{"x-delivery-limit": 3})
	v.declare("short", "classic", amqp091.Table{"x-max-length": 10})
	v.declare("small", "classic", amqp091.Table{"x-max-length-bytes": 10})
	v.declare("full", "quorum", amqp091.Table{"x-max-length": 10, "x-overflow": "reject-publish"})
	v.declare("aging", "classic", nil)
	v.policy("aging", map[string]any{"message-ttl": 60_000})
	v.declare("leaving", "classic", amqp091.Table{"x-expires": 600_000})
	v.declare("nowhere", "classic", amqp091.Table{"x-dead-letter-exchange": "missing"})
	v.must(v.ch.ExchangeDeclare("deaf", "fanout", true, false, false, false, nil))
	v.declare("unheard", "classic", amqp091.Table{"x-dead-letter-exchange": "deaf"})
	v.declare("dead", "classic", nil)
	v.must(v.ch.ExchangeDeclare("graves", "fanout", true, false, false, false, nil))
	v.must(v.ch.QueueBind("dead", "", "graves", false, nil))
	v.declare("careless", "quorum", amqp091.Table{"x-dead-letter-exchange": "graves"})
	v.declare("careful", "quorum", amqp091.Table{"x-dead-letter-exchange": "graves", "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"})
	v.declare("stream", "stream", nil)
	v.declare("mirrored", "classic", nil)
	mirrors := old(t, node)
	if mirrors {
		v.policy("mirrored", map[string]any{"ha-mode": "all"})
	}
	for name, auto := range map[string]bool{"fleeting": false, "closing": true} {
		_, err := v.ch.QueueDeclare(name, auto, auto, !auto, false, nil)
		v.must(err)
	}
	v.cfg.Queues = []string{"limited", "short", "small", "full", "aging", "leaving", "nowhere", "unheard", "dead", "careless", "careful", "stream", "mirrored", "fleeting", "closing", "none"}
	v.known()
	found := examine(t, v.cfg)
	for _, c := range []struct {
		queue string
		check doctor.Check
		text  string
	}{
		{"limited", doctor.DeliveryLimit, "after 3 deliveries"}, {"short", doctor.MaxLength, "max-length"}, {"small", doctor.MaxLength, "max-length-bytes"},
		{"aging", doctor.MessageTTL, `policy "aging"`}, {"leaving", doctor.Expires, "10m"}, {"nowhere", doctor.DeadLetterExchange, `"missing" does not exist`},
		{"unheard", doctor.DeadLetterExchange, "nothing is bound"}, {"careless", doctor.DeadLetterStrategy, "at-least-once"}, {"stream", doctor.QueueType, "stream"},
		{"fleeting", doctor.AutoDelete, "exclusive"}, {"fleeting", doctor.Durable, "restart"}, {"closing", doctor.AutoDelete, "last consumer"},
	} {
		want(t, found, c.check, doctor.Loses, fmt.Sprintf("queue %q", c.queue), c.text)
	}
	if mirrors {
		want(t, found, doctor.QueueType, doctor.Loses, `queue "mirrored"`, "the queue is mirrored")
	}
	want(t, found, doctor.Overflow, doctor.Stalls, `queue "full"`, "reject-publish")
	want(t, found, doctor.Missing, doctor.Stalls, `queue "none"`)
	for _, f := range found {
		if strings.Contains(f.Subject, `"careful"`) || strings.Contains(f.Subject, `"dead"`) {
			t.Errorf("found %s", f)
		}
	}
}

func troubledExchanges(t *testing.T, node *service.RabbitMQ) {
	v := newVirtual(t, node)
	v.must(v.ch.ExchangeDeclare("fleeting", "fanout", false, true, false, false, nil))
	v.must(v.ch.ExchangeDeclare("swallowing", "fanout", true, false, false, false, amqp091.Table{"alternate-exchange": "amq.fanout"}))
	v.must(v.ch.ExchangeDeclare("ruled", "fanout", true, false, false, false, nil))
	v.policy("ruled", map[string]any{"alternate-exchange": "amq.topic"})
	found := examine(t, v.cfg)
	want(t, found, doctor.Durable, doctor.Stalls, `exchange "fleeting"`)
	want(t, found, doctor.AutoDelete, doctor.Stalls, `exchange "fleeting"`)
	want(t, found, doctor.Unbound, doctor.Stalls, `exchange "swallowing"`, "nothing is bound")
	want(t, found, doctor.AlternateExchange, doctor.Loses, `exchange "swallowing"`, `"amq.fanout"`)
	await(t, v.cfg, doctor.AlternateExchange, doctor.Loses, `exchange "ruled"`, "clear_policy")
	v.cfg.Exchanges = []string{"missing"}
	want(t, examine(t, v.cfg), doctor.Missing, doctor.Stalls, `exchange "missing"`)
}

func troubledConsumers(t *testing.T, node *service.RabbitMQ) {
	v := newVirtual(t, node)
	v.declare("left", "classic", nil)
	v.declare("shared", "classic", nil)
	v.declare("single", "classic", amqp091.Table{"x-single-active-consumer": true})
	v.must(v.ch.PublishWithContext(t.Context(), "", "left", true, false, amqp091.Publishing{Body: []byte("secret")}))
	for range 2 {
		for _, queue := range []string{"shared", "single"} {
			_, err := v.ch.Consume(queue, "", false, false, false, false, nil)
			v.must(err)
		}
	}
	await(t, v.cfg, doctor.NoConsumer, doctor.Stalls, `queue "left"`, "1 messages wait", "rabbitmqctl delete_queue")
	named := amqp091.NewConnectionProperties()
	named.SetClientConnectionName("boxpair subscriber")
	conn, err := amqp091.DialConfig(v.address("guest", "guest"), amqp091.Config{Properties: named})
	v.must(err)
	v.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	v.must(err)
	_, err = ch.Consume("shared", "", false, false, false, false, nil)
	v.must(err)
	await(t, v.cfg, doctor.SeveralConsumers, doctor.Loses, `queue "shared"`, "3 consumers share the queue (", "user guest from 127.0.0.1:", `user guest as "boxpair subscriber" from 127.0.0.1:`,
		"give each service a queue of its own", "for the processes of one service only, delete the queue when it is empty")
	r := newRig(t)
	claim := twoConsumers(r)
	claim("stock/reserve", 1, 60)
	claim("mail/send", 2, 60)
	r.cfg.Management, r.cfg.Ignore = v.cfg.Management, []doctor.Check{doctor.SharedQueue}
	found := r.examine()
	want(t, found, doctor.SeveralConsumers, doctor.Loses, "give each service a queue of its own", "a single active consumer is for the processes of one service only")
	for _, f := range found {
		if f.Check == doctor.SeveralConsumers && strings.Contains(f.Remedy, "delete the queue") {
			t.Errorf("would delete the queue of another service: %s", f)
		}
	}
	empty := newVirtual(t, node)
	want(t, examine(t, empty.cfg), doctor.Missing, doctor.NotChecked, `virtual host "`+empty.name+`"`, "it has no queues, and other virtual hosts have: ", "--vhost NAME")
	none(t, examine(t, v.cfg), doctor.Missing)
	for _, f := range examine(t, v.cfg) {
		if strings.Contains(f.Subject, `"single"`) {
			t.Errorf("found %s", f)
		}
	}
}

func troubledRights(t *testing.T, node *service.RabbitMQ) {
	v := newVirtual(t, node)
	v.declare("placed", "classic", nil)
	wide, narrow, changed, gone := v.user("", ".*", ".*", ".*"), v.user("", "^$", "^other$", "^other$"), v.user("", "^$", "^$", "^placed$"), v.user("", "^$", "^$", "^$")
	v.channel(wide)
	v.channel(narrow)
	v.channel(gone)
	_, err := v.channel(changed).Consume("placed", "", false, false, false, false, nil)
	v.must(err)
	v.allow(changed, "^$", "^amq\\.default$", "^other$")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, node.ManagementURL()+"/api/permissions/"+v.name+"/"+gone, http.NoBody)
	v.must(err)
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	v.must(err)
	v.must(response.Body.Close())
	await(t, v.cfg, doctor.RightsWide, doctor.Advice, "user "+wide, "rabbitmqctl set_permissions", "'^$'")
	await(t, v.cfg, doctor.RightsNarrow, doctor.Stalls, "user "+narrow, "neither write")
	await(t, v.cfg, doctor.RightsNarrow, doctor.Stalls, "user "+changed, `consumes the queue "placed"`, "'^placed$'")
	await(t, v.cfg, doctor.RightsNarrow, doctor.Stalls, "user "+gone, "no rights in the virtual host")

	watcher := v.user("management", "^$", "^$", "^$")
	v.cfg.Management.URL = strings.Replace(node.ManagementURL(), "guest:guest", watcher+":"+watcher, 1)
	found := examine(t, v.cfg)
	want(t, found, doctor.Alarms, doctor.NotChecked, "set_user_tags USER monitoring")
	want(t, found, doctor.RightsWide, doctor.NotChecked)
	monitor := v.user("monitoring", "^$", "^$", "^$")
	v.cfg.Management.URL = strings.Replace(node.ManagementURL(), "guest:guest", monitor+":"+monitor, 1)
	found = examine(t, v.cfg)
	none(t, found, doctor.Alarms)
	want(t, found, doctor.FeatureFlags, doctor.NotChecked, "administrator", "rabbitmqctl list_feature_flags")
	want(t, found, doctor.RightsWide, doctor.NotChecked, "administrator", "rabbitmqctl list_permissions")
}

// RabbitMQ 4 and a cluster in trouble, by answers in the form of those of RabbitMQ 4.1.
func TestAnswersOfRabbitMQ4(t *testing.T) {
	t.Parallel()
	queue := `{"name":"placed","type":"quorum","durable":true,"arguments":{"x-queue-type":"quorum"},"effective_policy_definition":{},"messages":0}`
	answers := map[string]string{
		"/api/overview":          `{"rabbitmq_version":"4.1.0"}`,
		"/api/queues/%2F":        `[` + queue + `]`,
		"/api/queues/%2F/placed": queue,
		"/api/exchanges/%2F":     `[]`,
		"/api/bindings/%2F":      `[]`,
		"/api/consumers/%2F":     `[]`,
		"/api/connections":       `[]`,
		"/api/permissions":       `[]`,
		"/api/feature-flags":     `[{"name":"khepri_db","state":"disabled","stability":"experimental"},{"name":"rabbitmq_4.1.0","state":"disabled","stability":"stable"}]`,
		"/api/nodes":             `[{"name":"rabbit@a","running":true,"partitions":["rabbit@b"]},{"name":"rabbit@b","running":false}]`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, known := answers[r.URL.EscapedPath()]
		if !known {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	cfg := doctor.Config{Management: amqp.Management{URL: strings.Replace(server.URL, "://", "://monitor:secret@", 1)}}
	found := examine(t, cfg)
	want(t, found, doctor.DeliveryLimit, doctor.Loses, "after 20 deliveries, by default")
	want(t, found, doctor.FeatureFlags, doctor.Advice, "feature flags are disabled: rabbitmq_4.1.0;")
	want(t, found, doctor.Alarms, doctor.Loses, "cut off from rabbit@b")
	want(t, found, doctor.Alarms, doctor.Stalls, "node rabbit@b", "does not run")
	server.Close()
	want(t, examine(t, cfg), doctor.Reach, doctor.NotChecked, "no management API at")
}
