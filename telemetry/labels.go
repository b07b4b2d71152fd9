package telemetry

import (
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// maxLabels is how many attribute sets are kept. When more topics appear, all sets are made anew.
const maxLabels = 1000

// labels caches the attributes of measurements, since making a set costs more than a measurement.
type labels struct {
	system attribute.KeyValue

	mu    sync.Mutex
	known map[labelKey]attributeSet
}

type labelKey struct{ topic, outcome string }

// attributeSet holds attributes as options of counters and of histograms.
type attributeSet struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

// of returns the attributes of a topic and of an outcome, unless outcome is "".
func (l *labels) of(topic, outcome string) attributeSet {
	key := labelKey{topic, outcome}
	l.mu.Lock()
	defer l.mu.Unlock()
	if m, ok := l.known[key]; ok {
		return m
	}
	list := append(make([]attribute.KeyValue, 0, 3), l.system, semconv.MessagingDestinationName(topic))
	if outcome != "" {
		list = append(list, attrOutcome.String(outcome))
	}
	set := metric.WithAttributeSet(attribute.NewSet(list...))
	m := attributeSet{add: []metric.AddOption{set}, record: []metric.RecordOption{set}}
	if len(l.known) >= maxLabels {
		clear(l.known)
	}
	l.known[key] = m
	return m
}
