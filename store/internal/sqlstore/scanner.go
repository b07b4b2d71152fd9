package sqlstore

import "strings"

// scanner goes through the statements of a text, and skips quoted texts and comments.
type scanner struct {
	d    Syntax
	text string
	at   int
	word string // the last word, without quotes
}

// is tells whether the last word is keyword. keyword is in upper case.
func (s *scanner) is(keyword string) bool { return strings.EqualFold(s.word, keyword) }

// next reads the first word of the next statement. It returns false at the end of the text.
func (s *scanner) next() bool {
	for {
		s.blank()
		if s.at >= len(s.text) {
			return false
		}
		if c := s.text[s.at]; c != ';' && c != '(' {
			break
		}
		s.at++
	}
	s.more()
	return true
}

// more reads the next word of the statement, or "" if no word follows.
func (s *scanner) more() {
	s.blank()
	s.word = ""
	if s.at >= len(s.text) {
		return
	}
	if c := s.text[s.at]; c == '"' || c == '`' {
		begin := s.at + 1
		s.quoted(c, false)
		s.word = s.text[begin:max(begin, s.at-1)]
		return
	}
	begin := s.at
	for s.at < len(s.text) && inWord(s.text[s.at]) {
		s.at++
	}
	s.word = s.text[begin:s.at]
}

func inWord(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// skip goes to the end of the statement, and tells whether a semicolon ended it.
func (s *scanner) skip() bool {
	for s.at < len(s.text) {
		s.blank()
		if s.at >= len(s.text) {
			break
		}
		switch c := s.text[s.at]; {
		case c == ';':
			return true
		case c == '\'':
			escapes := s.d.Backslashes || s.d.Dollars && s.at > 0 && s.text[s.at-1]|0x20 == 'e' && (s.at == 1 || !inWord(s.text[s.at-2]))
			s.quoted(c, escapes)
		case c == '"', c == '`' && s.d.Implicit:
			s.quoted(c, s.d.Backslashes && c == '"')
		case c == '$' && s.d.Dollars && (s.at == 0 || !inWord(s.text[s.at-1])):
			s.dollars()
		default:
			s.at++
		}
	}
	return false
}

// quoted skips the quoted text that begins here.
func (s *scanner) quoted(quote byte, escapes bool) {
	for s.at++; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case escapes && c == '\\':
			s.at++
		case c == quote:
			s.at++
			return // a doubled quote begins another text
		}
	}
	s.at = min(s.at, len(s.text))
}

// dollars skips a text between two equal $tag$, if such a text begins here.
func (s *scanner) dollars() {
	end := s.at + 1
	for end < len(s.text) && s.text[end] != '$' && inWord(s.text[end]) {
		end++
	}
	if end >= len(s.text) || s.text[end] != '$' || '0' <= s.text[s.at+1] && s.text[s.at+1] <= '9' {
		s.at++ // an argument
		return
	}
	tag := s.text[s.at : end+1]
	s.at = end + 1
	if n := strings.Index(s.text[s.at:], tag); n >= 0 {
		s.at += n + len(tag)
		return
	}
	s.at = len(s.text)
}

// blank skips white space and comments. It does not skip the statements in /*! */, which MySQL
// runs.
func (s *scanner) blank() {
	for s.at < len(s.text) {
		rest := s.text[s.at:]
		switch {
		case rest[0] == ' ', rest[0] >= '\t' && rest[0] <= '\r':
			s.at++
		case s.d.Backslashes && (strings.HasPrefix(rest, "/*!") || strings.HasPrefix(rest, "/*M!")):
			s.at += strings.IndexByte(rest, '!') + 1
			for s.at < len(s.text) && '0' <= s.text[s.at] && s.text[s.at] <= '9' {
				s.at++
			}
		case s.d.Backslashes && strings.HasPrefix(rest, "*/"):
			s.at += 2
		case strings.HasPrefix(rest, "/*"):
			s.comment()
		case strings.HasPrefix(rest, "--") && (!s.d.Backslashes || len(rest) == 2 || rest[2] <= ' '), s.d.Backslashes && rest[0] == '#':
			n := strings.IndexByte(rest, '\n')
			if n < 0 {
				n = len(rest)
			}
			s.at += n
		default:
			return
		}
	}
}

// comment skips a comment. Comments of PostgreSQL may be nested.
func (s *scanner) comment() {
	depth := 0
	for s.at < len(s.text) {
		switch rest := s.text[s.at:]; {
		case strings.HasPrefix(rest, "/*") && (depth == 0 || s.d.Dollars):
			depth++
			s.at += 2
		case strings.HasPrefix(rest, "*/"):
			depth--
			s.at += 2
			if depth == 0 {
				return
			}
		default:
			s.at++
		}
	}
}
