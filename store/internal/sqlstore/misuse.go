package sqlstore

import (
	"errors"
	"fmt"
	"strings"

	"github.com/boxpair/boxpair/store/inbox"
)

// Errors for misuse of a transaction by the function to which a store has given it.
var (
	// ErrNotOwner is for a function that tried to end the transaction. The transaction is still
	// open.
	ErrNotOwner = errors.New("a function does not end the transaction that it was given: return nil to commit, " +
		"return an error to roll back, and use Savepoint to roll back a part")
	// ErrLeftOpen is for a function that has returned and left rows open.
	ErrLeftOpen = errors.New("rows or batch results were left open: close them, or read them to the end, before returning")
	// ErrOutlasts is for a function that tried to change a setting of its connection, which later
	// functions would get.
	ErrOutlasts = errors.New("the setting would outlast the transaction, and later transactions on the connection would have it: " +
		"use SET LOCAL, or set_config with true")
	// ErrElsewhere is for a function that tried to change the database in which the store's own
	// statements look for tables.
	ErrElsewhere = errors.New("USE: the store's own statements would run in the other database: qualify table names instead")
	// ErrReturned is for the use of a transaction whose function has returned.
	ErrReturned = errors.New("transaction used after its function has returned")
)

// ErrEnded is for a function that has ended the transaction in a way that could not be refused.
var ErrEnded = fmt.Errorf("%w: only the store commits and rolls back", inbox.ErrEnded)

// Refused returns the error for a statement, or a method, that ends a transaction.
func Refused(what string) error { return fmt.Errorf("%s: %w", what, ErrNotOwner) }

// Syntax is the syntax in which a database reads a text of statements.
type Syntax struct {
	// Dollars tells that texts are quoted by $tag$, too, and that backslashes escape in E''.
	Dollars bool
	// Backslashes tells that \ escapes in any text, # begins a comment, and /*! */ holds
	// statements.
	Backslashes bool
	// Implicit tells that definitions, such as CREATE TABLE, commit before they begin.
	Implicit bool
}

// Reading tells what a text of statements does to its transaction.
type Reading struct {
	// Text is the text, or "" for what is no statement of a function.
	Text string
	// Ends is the first word of a statement that ends the transaction, in upper case, or "".
	Ends string
	// Doubtful tells that the effect of the text is not visible in the text.
	Doubtful bool
	// Sets tells that the text changes a setting of the transaction or the session.
	Sets bool
	// Outlasts tells that the setting outlasts the transaction.
	Outlasts bool
	// Elsewhere tells that later statements look for names in another database.
	Elsewhere bool
	// Back tells that the text rolls back to, or releases, a savepoint that is not a store's.
	Back bool
	// Savepoint tells that the text sets a savepoint.
	Savepoint bool
}

// Read reads a text of statements, by the first words of each statement only.
func (d Syntax) Read(text string) (r Reading) {
	r.Text = text
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

// classify adds to r the statement whose first word was read.
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
	case s.is("SAVEPOINT"):
		r.Savepoint = true
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

// sets adds to r the settings of the statement whose first word was read.
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

// foreign reads the name behind ROLLBACK TO or RELEASE, and tells whether the savepoint is not a
// store's.
func (s *scanner) foreign() bool {
	if s.more(); s.is("SAVEPOINT") {
		s.more()
	}
	return !strings.HasPrefix(s.word, "boxpair_")
}

// Separates tells whether text, from which r was read, changes settings or savepoints that handlers
// of other messages in the transaction would see.
func (r Reading) Separates(text string) bool {
	return r.Sets || r.Back || setConfig(text) != ""
}

// Stays tells whether text, from which r was read, changes a PostgreSQL setting beyond the
// transaction. It cannot see whether an argument of set_config says so.
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
