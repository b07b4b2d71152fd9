package relay_test

import (
	"strings"
	"testing"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"

	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/transport/amqp"
)

// TestPublisherThatIsKnownToLoseIsRefused, also as one of several, unless the configuration accepts
// it.
func TestPublisherThatIsKnownToLoseIsRefused(t *testing.T) {
	t.Parallel()
	stock := &wamqp.Publisher{}
	downstreams := []relay.Downstream{{Name: "stock", Topics: []string{"order.*"}, Publisher: stock}}
	for names, cfg := range map[string]relay.Config{
		"publisher:":                {},
		"Downstreams[0].Publisher:": {Downstreams: downstreams},
	} {
		_, err := relay.NewStandalone(nil, stock, cfg)
		if err == nil || !strings.Contains(err.Error(), names) || !strings.Contains(err.Error(), "AllowLoss") {
			t.Errorf("error = %v; want it to say %s", err, names)
		}
		cfg.AllowLoss = true
		if _, err := relay.NewStandalone(nil, stock, cfg); err == nil || strings.Contains(err.Error(), "AllowLoss") {
			t.Errorf("accepted by the configuration: %v", err)
		}
	}
	p, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: amqp.DurableQueue("amqp://localhost")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := relay.NewStandalone(nil, p, relay.Config{}); err == nil || strings.Contains(err.Error(), "AllowLoss") {
		t.Errorf("the publisher of transport/amqp: %v", err)
	}
}
