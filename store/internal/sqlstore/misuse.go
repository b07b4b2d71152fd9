package sqlstore

import (
	"errors"
	"fmt"
	"strings"

	"github.com/boxpair/boxpair/store/inbox"
)

// What a function has done to the transaction that a store has given it.
var (
	// ErrNotOwner is for a function that tried to end the transaction. Nothing was ended.
	ErrNotOwner = errors.New("a function does not end the transaction that it was given: it returns nil to have it committed, " +
		"an error to have it rolled back, and uses Savepoint for a part")
	// ErrLeftOpen is for a function that has returned with rows that nobody can read any more.
	ErrLeftOpen = errors.New("rows or batch results were left open: close them, or read them to the end, before returning")
	// ErrOutlasts is for a function that tried to change a setting of its connection, which others
	// are given after it.
	ErrOutlasts = errors.New("the setting would outlast the transaction, on a connection that other functions are given: " +
		"use SET LOCAL, or set_config with true")
	// ErrElsewhere is for a function that tried to change the database in which the store's own
	// statements look for tables.
	ErrElsewhere = errors.New("USE: the store's own statements would run in the other database: name it before the table instead")
	// ErrReturned is for the use of a transaction whose function has returned.
	ErrReturned = errors.New("the function that the transaction was given to has returned")
)

// ErrEnded is for a function that has ended the transaction where nobody could refuse it.
var ErrEnded = fmt.Errorf("%w: commits and rollbacks are the owner's", inbox.ErrEnded)

// Refused returns the error for a statement, or a method, that ends a transaction.
func Refused(what string) error { return fmt.Errorf("%s: %w", what, ErrNotOwner) }

// Syntax says how a database reads a text of statements.
type Syntax struct {
	// Dollars is for texts in $tag$, and backslashes in E''.
	Dollars bool
	// Backslashes is for \ in any text, comments behind #, and statements in /*! */.
	Backslashes bool
	// Implicit is for definitions that commit before they begin.
	Implicit bool
}

// Reading is what a text of statements does to the transaction that it runs in.
type Reading struct {
	// Ends is the first word of a statement that ends the transaction, in upper case, or "".
	Ends string
	// Doubtful tells that what the text does cannot be seen from it.
	Doubtful bool
	// Sets tells that it changes a setting of the transaction or the session.
	Sets bool
	// Outlasts tells that the setting is not of the transaction.
	Outlasts bool
	// Elsewhere tells that names are looked for in another database from now on.
	Elsewhere bool
	// Back tells that it goes back to a savepoint that is not a store's, or releases one.
	Back bool
}

// Read reads a text of statements. It looks at the first words of each statement only.
func (d Syntax) Read(text string) (r Reading) {
	for s := (scanner{d: d, text: text}); s.next(); {
		s.classify(&r)
		if r.Ends != "" {
			return r
		}
		if strings.IndexByte(text[s.at:], ';') < 0 {
			return r
		}
		if s.is("CREATE") && !d.Implicit { // its body may hold statements of its own
			r.Doubtful = r.Doubtful || s.skip()
			return r
		}
		s.skip()
	}
	return r
}

// classify takes note of the statement whose first word was read.
func (s *scanner) classify(r *Reading) {
	switch first := s.word; {
	case s.is("COMMIT"), s.is("ABORT"), s.is("END"):
		r.Ends = strings.ToUpper(first)
	case s.is("ROLLBACK"):
		s.more()
		if s.is("WORK") || s.is("TRANSACTION") {
			s.more()
		}
		if !s.is("TO") {
			r.Ends = "ROLLBACK"
			return
		}
		r.Back = r.Back || s.foreign()
	case s.is("RELEASE"):
		r.Back = r.Back || s.foreign()
	case s.is("PREPARE"):
		if s.more(); s.is("TRANSACTION") {
			r.Ends = "PREPARE TRANSACTION"
		}
	case s.d.Implicit && s.commits():
		r.Ends = strings.ToUpper(first)
	case s.is("SET"), s.is("RESET"), s.is("DISCARD"), s.is("PRAGMA"), s.is("USE"):
		r.Sets = true
		s.sets(r)
	case s.is("CALL"), s.is("EXECUTE"), s.is("REPEAT"):
		r.Doubtful = s.d.Implicit
	}
}

// sets takes note of what the statement sets, whose first word was read.
func (s *scanner) sets(r *Reading) {
	rest := s.text[s.at:]
	switch {
	case s.is("USE"):
		r.Elsewhere = true
	case s.is("PRAGMA"):
		r.Outlasts = r.Outlasts || strings.ContainsAny(rest, "=(")
	case s.d.Implicit && strings.HasPrefix(strings.TrimSpace(rest), "@") && !strings.Contains(rest, "@@"): // variables of the handler's own
	case s.is("SET"):
		if s.more(); s.d.Implicit && s.is("STATEMENT") { // in MariaDB, for the statement behind FOR
			r.Doubtful = true
			return
		}
		local := s.is("TRANSACTION") || !s.d.Implicit && (s.is("LOCAL") || s.is("CONSTRAINTS"))
		r.Outlasts = r.Outlasts || !local
	default:
		r.Outlasts = true
	}
}

// foreign reads the name behind ROLLBACK TO or RELEASE, and tells whether it is not one of a
// store's.
func (s *scanner) foreign() bool {
	if s.more(); s.is("SAVEPOINT") {
		s.more()
	}
	return !strings.HasPrefix(s.word, "boxpair_")
}

// Separates tells whether the statement, whose text r was read from, does what handlers of other
// messages in the same transaction would see.
func (r Reading) Separates(text string) bool {
	return r.Sets || r.Back || setConfig(text) != ""
}

// Stays tells whether the statement, whose text r was read from, sets in PostgreSQL what outlasts
// the transaction. Where an argument says whether it does, that is not known.
func (r Reading) Stays(text string) bool {
	if r.Outlasts {
		return true
	}
	for call := setConfig(text); call != ""; call = setConfig(call[1:]) {
		args, _, _ := strings.Cut(call, ")")
		if last := strings.TrimSpace(args[strings.LastIndexByte(args, ',')+1:]); strings.EqualFold(last, "false") {
			return true
		}
	}
	return false
}

// setConfig returns the text from the first set_config on, or "".
func setConfig(text string) string {
	const name = "set_config"
	for at := 0; ; at++ {
		i := strings.IndexByte(text[at:], '_')
		if i < 0 {
			return ""
		}
		at += i
		if begin := at - len("set"); begin >= 0 && begin+len(name) <= len(text) && strings.EqualFold(text[begin:begin+len(name)], name) {
			return text[begin:]
		}
	}
}

// commits tells whether the statement commits in MySQL and MariaDB before it begins.
func (s *scanner) commits() bool {
	switch strings.ToUpper(s.word) {
	case "BEGIN", "START", "STOP", "XA", "ALTER", "RENAME", "TRUNCATE", "GRANT", "REVOKE", "LOCK", "UNLOCK", "INSTALL", "UNINSTALL",
		"ANALYZE", "OPTIMIZE", "REPAIR", "CHECK", "CACHE", "FLUSH", "CHANGE", "RESET", "IMPORT":
		return true
	case "CREATE", "DROP":
		s.more()
		return !s.is("TEMPORARY") && !s.is("PREPARE")
	case "LOAD":
		s.more()
		return s.is("INDEX")
	case "SET":
		rest := strings.ToLower(s.text[s.at:])
		words := append(strings.Fields(rest), "")
		return strings.Contains(rest, "autocommit") || strings.HasPrefix(words[0], "password") || words[0] == "default"
	}
	return false
}
