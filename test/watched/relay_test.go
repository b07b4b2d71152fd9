package watched

import (
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/boxpair/boxpair/test/shop"
)

// TestRelayExportsWhatItsAlertsAskFor scrapes a relay of its own, as a Prometheus server does, and
// looks for every metric of outboxes and relays in the rules.
func TestRelayExportsWhatItsAlertsAskFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, shop.Command(t))
	r.write(r.topic, 1)
	relay := r.startRelay(`boxpair relay --outbox "$OUTBOX" --amqp "$AMQP" --listen 127.0.0.1:0`)
	var address string
	r.until("the relay listens", func() bool {
		if m := regexp.MustCompile(`address=(\S+)`).FindStringSubmatch(relay.Log()); m != nil {
			address = m[1]
		}
		return address != ""
	})
	var all rules
	readYAML(t, rulesFile, &all)
	var names []string
	for _, one := range all.Groups[0].Rules {
		names = append(names, regexp.MustCompile(`\b(?:outbox|boxpair_outbox|boxpair_relay)_[a-z_]+(?:\{| >|\[|\)| <)`).FindAllString(one.Expr, -1)...)
	}
	for i := range names {
		names[i] = strings.TrimRight(names[i], "{[)<> ")
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	if len(names) < 8 {
		t.Fatalf("the rules ask only for %s", names)
	}
	r.until("the relay exports "+strings.Join(names, ", "), func() bool {
		text := get(t, "http://"+address+"/metrics")
		return !slices.ContainsFunc(names, func(name string) bool { return !strings.Contains(text, "\n"+name+"{") })
	})
	r.until("the event is sent", func() bool { return r.metric("outbox_unsent_count") == 0 })
	if text := get(t, "http://"+address+"/readyz"); !strings.Contains(text, `"ok":true`) {
		t.Errorf("/readyz answers %s", text)
	}
	r.stopRelays()
}

func get(t *testing.T, url string) string {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	ok(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(q)
	ok(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	ok(t, err)
	return string(text)
}
