package consumer

import "github.com/boxpair/boxpair/internal/choice"

var (
	isolationWords   = []string{ReadCommitted: "read committed", RepeatableRead: "repeatable read", Serializable: "serializable"}
	shortWindowWords = []string{RefuseShortWindow: "refuse", ReportShortWindow: "report"}
)

// MarshalText returns "read committed", "repeatable read" or "serializable", and an error for any other value.
func (i Isolation) MarshalText() ([]byte, error) {
	return choice.Text("Isolation", isolationWords, i)
}

// UnmarshalText takes what MarshalText returns, and nothing else.
func (i *Isolation) UnmarshalText(text []byte) error {
	return choice.Parse("Isolation", isolationWords, text, i)
}

// MarshalText returns "refuse" or "report", and an error for any other value.
func (s ShortWindow) MarshalText() ([]byte, error) {
	return choice.Text("ShortWindow", shortWindowWords, s)
}

// UnmarshalText takes what MarshalText returns, and nothing else.
func (s *ShortWindow) UnmarshalText(text []byte) error {
	return choice.Parse("ShortWindow", shortWindowWords, text, s)
}
