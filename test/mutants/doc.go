// Package mutants holds deliberately broken versions of this library: each mutant breaks one
// guarantee, and names the test that must notice. A test that passes on broken code proves nothing;
// mutants are the tests of the tests.
//
// A mutant is a replacement in one file. The compiler gets the changed copy in place of the file
// (go build -overlay), so the sources stay as they are, and broken code is never part of the
// library. A mutant is caught if its test passes without the change and fails with it. "make
// mutants" tries all mutants; "make mutants-list" prints them, with the known hazards of messaging
// systems and the tests that show each hazard met. docs/mutants.md tells more.
package mutants
