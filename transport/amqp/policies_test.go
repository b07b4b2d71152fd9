package amqp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport/amqp"
)

// limitsOf reads what is in force for one queue.
func limitsOf(t *testing.T, m amqp.Management, queue string) amqp.QueueLimits {
	t.Helper()
	all, err := amqp.CheckPolicies(t.Context(), m, queue)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].Queue != queue {
		t.Fatalf("limits = %+v", all)
	}
	return all[0]
}

// wantFindings fails unless the findings are about these settings, in this order.
func wantFindings(t *testing.T, l amqp.QueueLimits, settings ...string) {
	t.Helper()
	var found []string
	for _, f := range l.Findings {
		found = append(found, f.Setting)
		if text := f.String(); f.Problem == "" || f.Remedy == "" || !strings.Contains(text, l.Queue) || strings.Contains(text, "\n") {
			t.Errorf("finding %q", text)
		}
	}
	if !slices.Equal(found, settings) {
		t.Errorf("%s: findings %v about %v, want %v", l.Queue, l.Findings, found, settings)
	}
}

func TestPolicyThatDropsMessagesIsFound(t *testing.T) {
	t.Parallel()
	node := testenv.PrivateRabbitMQManagement(t)
	m := amqp.Management{URL: node.ManagementURL()}
	config := amqp.DurableQueue(node.URL())
	declare := func(queue string, args amqp091.Table) {
		c := config
		c.Queue.Arguments = args
		if err := newSubscriber(t, amqp.SubscriberConfig{AMQP: c}).SubscribeInitialize(queue); err != nil {
			t.Fatal(err)
		}
	}
	ch := channel(t, node.URL())
	declare("orders/plain", nil)
	if err := ch.ExchangeDeclare("unbound", "fanout", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	declare("unbound", amqp091.Table{"x-dead-letter-exchange": "unbound", "x-message-ttl": 60_000})
	declare("full", amqp091.Table{"x-max-length": 10, "x-overflow": "reject-publish"})

	var plain amqp.QueueLimits
	await(t, "the queue's type", func() bool { // a server that is just being started answers with an error
		all, err := amqp.CheckPolicies(t.Context(), m, "orders/plain")
		if err == nil {
			plain = all[0]
		}
		return plain.Type == "quorum"
	})
	if limit := plain.DeliveryLimit; limit != -1 && limit != 20 || plain.MaxLength != -1 || plain.MessageTTL != -1 || plain.Expires != -1 {
		t.Errorf("limits = %+v", plain)
	}
	wantFindings(t, plain)
	wantFindings(t, limitsOf(t, m, "none"), "queue")
	full := limitsOf(t, m, "full")
	if full.MaxLength != 10 || full.Overflow != "reject-publish" {
		t.Errorf("limits = %+v", full)
	}
	wantFindings(t, full)
	wantFindings(t, limitsOf(t, m, "unbound"), "dead-letter-exchange", "message-ttl")

	node.Ctl(t, "set_policy", "--apply-to", "queues", "tight", ".*",
		`{"delivery-limit": 3, "max-length": 5, "max-length-bytes": 1000, "message-ttl": 30000, "expires": 900000}`)
	var l amqp.QueueLimits
	await(t, "the policy", func() bool { l = limitsOf(t, m, "orders/plain"); return l.Policy == "tight" && l.DeliveryLimit == 3 })
	if l.MaxLength != 5 || l.MaxLengthBytes != 1000 || l.Overflow != "drop-head" || l.MessageTTL != 30*time.Second || l.Expires != 15*time.Minute {
		t.Errorf("limits = %+v", l)
	}
	wantFindings(t, l, "delivery-limit", "max-length", "max-length-bytes", "message-ttl", "expires")

	node.Ctl(t, "set_policy", "--apply-to", "queues", "tight", ".*", `{"delivery-limit": 3, "dead-letter-exchange": "gone"}`)
	await(t, "the policy", func() bool { l = limitsOf(t, m, "orders/plain"); return l.DeadLetterExchange == "gone" })
	wantFindings(t, l, "dead-letter-exchange", "delivery-limit")
	if err := ch.ExchangeDeclare("gone", "fanout", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind("full", "", "gone", false, nil); err != nil {
		t.Fatal(err)
	}
	await(t, "the binding", func() bool { l = limitsOf(t, m, "orders/plain"); return l.DeadLetters })
	wantFindings(t, l)

	bad := m
	bad.URL = strings.Replace(m.URL, "guest:guest@", "guest:wrong-password@", 1)
	_, err := amqp.CheckPolicies(t.Context(), bad, "full")
	wantAPIError(t, err, "tag management")
}

// wantAPIError fails unless the error says this, and no password.
func wantAPIError(t *testing.T, err error, says string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "wrong-password") {
		t.Errorf("error = %v", err)
	}
}

// answering is an API that answers with these texts, by path.
func answering(t *testing.T, answers map[string]string) amqp.Management {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, there := answers[r.URL.EscapedPath()]
		if !there {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(server.Close)
	return amqp.Management{URL: strings.Replace(server.URL, "http://", "http://guest:wrong-password@", 1), VHost: "/shop"}
}

// TestDeliveryLimitInForceFollowsTheVersionOfTheBroker: a policy's limit goes before
// x-delivery-limit -1.
func TestDeliveryLimitInForceFollowsTheVersionOfTheBroker(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		version, arguments, policy string
		want                       int64
		findings                   []string
	}{
		{"3.13.7", `{}`, `[]`, -1, nil},
		{"3.13.7", `{"x-delivery-limit": -1}`, `{}`, 0, []string{"delivery-limit"}},
		{"4.2.0", `{}`, `null`, 20, []string{"delivery-limit"}},
		{"4.2.0", `{"x-delivery-limit": -1}`, `{}`, -1, nil},
		{"4.2.0", `{}`, `{"delivery-limit": -1}`, -1, nil},
		{"4.2.0", `{"x-delivery-limit": -1}`, `{"delivery-limit": 5}`, 5, []string{"delivery-limit"}},
		{"4.2.0", `{"x-delivery-limit": 3}`, `{"delivery-limit": 5}`, 3, []string{"delivery-limit"}},
		{"4.2.0", `{"x-delivery-limit": 3, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}`, `{}`, 3, nil},
		{"4.2.0", `{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "none"}`, `{"delivery-limit": 3}`, 3, []string{"dead-letter-exchange", "delivery-limit"}},
		{"4.2.0", `{"x-delivery-limit": 3, "x-dead-letter-exchange": ""}`, `{}`, 3, []string{"dead-letter-exchange", "delivery-limit"}},
	} {
		m := answering(t, map[string]string{
			"/api/overview": fmt.Sprintf(`{"rabbitmq_version": %q}`, test.version),
			"/api/queues/%2Fshop/q": fmt.Sprintf(`{"type": "quorum", "durable": true, "arguments": %s, "effective_policy_definition": %s}`,
				test.arguments, test.policy),
		})
		l := limitsOf(t, m, "q")
		if l.DeliveryLimit != test.want {
			t.Errorf("%s, %s, %s: limit %d, want %d", test.version, test.arguments, test.policy, l.DeliveryLimit, test.want)
		}
		wantFindings(t, l, test.findings...)
	}
}

func TestStreamAndTransientQueueAreFound(t *testing.T) {
	t.Parallel()
	m := answering(t, map[string]string{
		"/api/overview":         `{"rabbitmq_version": "4.2.0"}`,
		"/api/queues/%2Fshop/q": `{"type": "stream", "durable": false, "arguments": {}, "effective_policy_definition": {}}`,
	})
	wantFindings(t, limitsOf(t, m, "q"), "type", "durable")
}

func TestMissingManagementAPIIsSaid(t *testing.T) {
	t.Parallel()
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	check := func(m amqp.Management) error {
		ctx, cancel := context.WithTimeout(t.Context(), publishCall)
		defer cancel()
		_, err := amqp.CheckPolicies(ctx, m, "q")
		return err
	}
	wantAPIError(t, check(amqp.Management{URL: strings.Replace(closed.URL, "://", "://guest:wrong-password@", 1)}), "enable the plugin rabbitmq_management")
	wantAPIError(t, check(answering(t, nil)), "not a management API")
	wantAPIError(t, check(answering(t, map[string]string{"/api/overview": "<html>"})), "not the answer of a management API")
	wantAPIError(t, check(amqp.Management{URL: "amqp://guest:wrong-password@host"}), "URL: want http://")
	wantAPIError(t, check(amqp.Management{URL: "http://guest:wrong-password/x@host"}), "URL: want http://")
}
