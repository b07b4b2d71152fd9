package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
)

// scenario is a question, and the ways to do it that are compared.
type scenario struct {
	name, about string
	unit        string // what is counted
	variants    []variant
}

// variant is one way to do what a scenario asks for. It is measured in a process of its own.
type variant struct {
	name, about string
	// limit is the variant of the same scenario that this one is divided by, in the same round.
	limit string
	// full and quick are how many messages are measured; a variant without quick is left out
	// of -quick.
	full, quick int
	measure     func(ctx context.Context, s *stage) error
}

// scenarios are all that can be measured.
func scenarios() []scenario {
	return []scenario{
		enqueueScenario(), relayScenario(), consumeScenario(), latencyScenario(), chainScenario(), embeddedScenario(),
	}
}

// find returns a variant of a scenario.
func find(scenarioName, variantName string) (scenario, variant, error) {
	list := scenarios()
	i := slices.IndexFunc(list, func(s scenario) bool { return s.name == scenarioName })
	if i < 0 {
		return scenario{}, variant{}, fmt.Errorf("there is no scenario %q; there are %s", scenarioName, names(list, func(s scenario) string { return s.name }))
	}
	v, ok := list[i].find(variantName)
	if !ok {
		return scenario{}, variant{}, fmt.Errorf("scenario %s has no variant %q; it has %s", scenarioName, variantName,
			names(list[i].variants, func(v variant) string { return v.name }))
	}
	return list[i], v, nil
}

func (s scenario) find(name string) (variant, bool) {
	i := slices.IndexFunc(s.variants, func(v variant) bool { return v.name == name })
	if i < 0 {
		return variant{}, false
	}
	return s.variants[i], true
}

// size is how many messages are measured.
func (v variant) size(quick bool) int {
	if quick {
		return cmp.Or(v.quick, v.full/5)
	}
	return v.full
}

func names[T any](list []T, name func(T) string) string {
	all := make([]string, len(list))
	for i := range list {
		all[i] = name(list[i])
	}
	return strings.Join(all, ", ")
}
