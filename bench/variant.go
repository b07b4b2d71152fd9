package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
)

// scenario is a question, with the variants that are compared.
type scenario struct {
	name, about string
	unit        string // the counted unit
	apart       bool   // not part of the suite
	variants    []variant
}

// variant is one answer to the question of a scenario. It is measured in a process of its own.
type variant struct {
	name, about string
	// limit is the variant of the scenario by which this variant is divided, in each round.
	limit string
	// full and quick are the numbers of measured messages; -quick leaves out a variant without
	// quick.
	full, quick int
	measure     func(ctx context.Context, s *stage) error
}

// scenarios are all scenarios.
func scenarios() []scenario {
	return []scenario{
		enqueueScenario(), relayScenario(), consumeScenario(), latencyScenario(), takeoverScenario(), chainScenario(), steadyScenario(), embeddedScenario(), growthScenario(),
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

// size returns the number of measured messages.
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
