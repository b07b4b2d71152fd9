package mutants

import (
	"fmt"
	"strings"
)

// Document returns docs/mutants.md.
func Document() string {
	var b strings.Builder
	b.WriteString(documentHead)
	for _, m := range All() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Guarantee, m.Broken, m.Test.markdown())
	}
	b.WriteString(documentHazards)
	for _, h := range Hazards() {
		tests := make([]string, len(h.Tests))
		for i, t := range h.Tests {
			tests[i] = t.markdown()
		}
		fmt.Fprintf(&b, "| %s | %s |\n", h.Text, strings.Join(tests, ", "))
	}
	return b.String()
}

func (t Test) markdown() string {
	parts := strings.Split(t.Name, "/")
	text := fmt.Sprintf("`%s`", strings.TrimPrefix(parts[0], "Test"))
	if len(parts) > 1 {
		text += ": " + parts[len(parts)-1]
	}
	return text + " (" + t.Package + ")"
}

const documentHead = `# Mutants: tests of the tests

A guarantee that no test would miss is a sentence. So the library is built with one
guarantee broken, many times over, and each time a named test must fail:

    make mutants
    make mutants ONLY=no-dedupe

A mutant is caught when its test passes without it and fails with it, by an assertion: a
build that fails, a panic, or a test that does not end is no proof. (For a few the symptom is
that nothing ends; the table in the source says which.) The sources are never touched: the compiler is
given the changed file in place of the real one. A mutant whose text is no longer in
the source, or that no longer compiles, fails the ordinary tests, so the table cannot rot unnoticed.

This page is generated from ` + "`test/mutants`" + `; after a change there, run
` + "`make mutants-doc`" + `. Tests are named without their prefix ` + "`Test`" + `; those of the contract of a store are
followed by the name of the fact, and run on every store.

## What is broken, and which test notices

| mutant | guarantee | what is broken | test |
|---|---|---|---|
`

const documentHazards = `
## Known hazards, and the tests that show them met

Ways in which libraries of this kind lose, repeat or reorder messages, or stand still: most
of them were reproduced, in other libraries or in an early design of this one.

| hazard | tests |
|---|---|
`
