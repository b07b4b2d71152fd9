package settings

import (
	"fmt"
	"log"
	"os"
	"strings"
	"testing"

	"github.com/caarlos0/env/v11"
	"gopkg.in/yaml.v3"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/inbox"
)

// A service has settings of its own, and those of the library among them. What the file
// does not say comes from the environment, which goes first.
func Example() {
	const file = `
database: postgres://orders@db/shop
relay:
  lease_ttl: 5s
  hold_dead_keys: true
  backoff: {initial: 500ms, max: 1m}
inbox:
  service: orders
  window: 720h
reserve:
  order: {by_key: true}
  isolation: repeatable read
`
	environment := map[string]string{ // os.Environ(), if it is left out
		"ORDERS_DATABASE":          "postgres://orders:secret@db/shop",
		"ORDERS_RELAY_WINDOW":      "500",
		"ORDERS_RELAY_BACKOFF_MAX": "2m",
	}

	var settings struct {
		Database string                 `yaml:"database" env:"DATABASE"`
		Relay    relay.Config           `yaml:"relay" envPrefix:"RELAY_"`
		Inbox    consumer.Config        `yaml:"inbox" envPrefix:"INBOX_"`
		Reserve  consumer.HandlerConfig `yaml:"reserve" envPrefix:"RESERVE_"`
	}
	decoder := yaml.NewDecoder(strings.NewReader(file))
	decoder.KnownFields(true) // or a misspelt key would be ignored
	if err := decoder.Decode(&settings); err != nil {
		log.Fatal(err)
	}
	if err := env.ParseWithOptions(&settings, env.Options{Prefix: "ORDERS_", Environment: environment}); err != nil {
		log.Fatal(err)
	}

	relay := settings.Relay
	fmt.Println(relay.LeaseTTL, relay.HoldDeadKeys, relay.Window, relay.Backoff.Initial, relay.Backoff.Max)
	fmt.Println(settings.Inbox.Service, settings.Inbox.Window, settings.Reserve.Isolation == inbox.RepeatableRead)
	// Output:
	// 5s true 500 500ms 2m0s
	// orders 720h0m0s true
}

// A relay is configured by the environment alone.
func Example_environment() {
	environment := map[string]string{
		"RELAY_LEASE_TTL":            "5s",
		"RELAY_BACKOFF_INITIAL":      "500ms",
		"RELAY_DOWNSTREAMS_0_NAME":   "billing",
		"RELAY_DOWNSTREAMS_0_TOPICS": "invoice.#,payment.*",
	}
	var cfg relay.Config
	if err := env.ParseWithOptions(&cfg, env.Options{Prefix: "RELAY_", Environment: environment}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(cfg.LeaseTTL, cfg.Backoff.Initial, cfg.Downstreams[0].Name, cfg.Downstreams[0].Topics)
	// Output: 5s 500ms billing [invoice.# payment.*]
}

// TestDocumentShowsTheExample keeps docs/configuration.md to code that runs.
func TestDocumentShowsTheExample(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, language := range []string{"yaml", "go"} {
		_, rest, _ := strings.Cut(string(document), "<!-- example: "+language+" -->\n```"+language+"\n")
		block, _, closed := strings.Cut(rest, "```")
		if !closed || block == "" {
			t.Fatalf("the document has no example in %s", language)
		}
		for line := range strings.Lines(block) {
			if !strings.Contains(string(source), strings.TrimSpace(line)) {
				t.Errorf("the example has no line %q", strings.TrimSpace(line))
			}
		}
	}
}
