package relay_test

import (
	"errors"
	"fmt"
	"log"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"gopkg.in/yaml.v3"

	"github.com/boxpair/boxpair/producer/relay"
)

// A service reads its relay from a YAML file. Publishers of downstreams are the program's, which
// finds them by name.
func ExampleConfig_yaml() {
	const file = `
lease_ttl: 5s
window: 500
backoff: {initial: 500ms, max: 1m}
downstreams:
  - name: billing
    topics: [invoice.#, payment.*]
    prefix: shop.
`
	publishers := map[string]message.Publisher{"billing": nil} // one is made for each

	var cfg relay.Config
	decoder := yaml.NewDecoder(strings.NewReader(file))
	decoder.KnownFields(true) // or a misspelt key would be ignored
	if err := decoder.Decode(&cfg); err != nil {
		log.Fatal(err)
	}
	for i := range cfg.Downstreams {
		d := &cfg.Downstreams[i]
		publisher, known := publishers[d.Name]
		if !known {
			log.Fatal(errors.New("there is no publisher " + d.Name))
		}
		d.Publisher = publisher
	}
	fmt.Println(cfg.LeaseTTL, cfg.Window, cfg.Backoff.Max, cfg.Downstreams[0].Topics)
	// Output: 5s 500 1m0s [invoice.# payment.*]
}
