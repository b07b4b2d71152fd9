//go:build faults

package fault

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

type action string

const (
	actKill   action = "kill"
	actStop   action = "stop"
	actError  action = "error"
	actPanic  action = "panic"
	actGoexit action = "goexit"
	actWait   action = "wait"
)

var actions = []action{actKill, actStop, actError, actPanic, actGoexit, actWait}

// rule is the action at one point. The zero rule does nothing.
type rule struct {
	action action
	first  int
	always bool // every time from first on
}

func (r rule) due(n int) bool {
	return r.action != "" && (n == r.first || r.always && n > r.first)
}

func parse(spec string) (map[Point]rule, error) {
	rules := make(map[Point]rule)
	for text := range strings.SplitSeq(spec, ";") {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		name, what, ok := strings.Cut(text, "=")
		p := Point(name)
		if !ok || !slices.Contains(Points(), p) {
			return nil, fmt.Errorf("%s: %q does not begin with a point and =", Variable, text)
		}
		if _, twice := rules[p]; twice {
			return nil, fmt.Errorf("%s: %s is there twice", Variable, p)
		}
		r, err := parseRule(what)
		if err != nil {
			return nil, fmt.Errorf("%s: %q: %w", Variable, text, err)
		}
		rules[p] = r
	}
	return rules, nil
}

func parseRule(text string) (rule, error) {
	name, when, counted := strings.Cut(text, "@")
	r := rule{action: action(name), first: 1}
	if !slices.Contains(actions, r.action) {
		return rule{}, fmt.Errorf("%q is none of the actions %q", name, actions)
	}
	if !counted {
		return r, nil
	}
	when, r.always = strings.CutSuffix(when, "+")
	n, err := strconv.Atoi(when)
	if err != nil || n < 1 {
		return rule{}, fmt.Errorf("%q is no count from 1", when)
	}
	r.first = n
	return r, nil
}
