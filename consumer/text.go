package consumer

import "github.com/boxpair/boxpair/internal/choice"

var shortWindowWords = []string{RefuseShortWindow: "refuse", ReportShortWindow: "report"}

// MarshalText returns "refuse" or "report", and an error for any other value.
func (s ShortWindow) MarshalText() ([]byte, error) {
	return choice.Text("ShortWindow", shortWindowWords, s)
}

// UnmarshalText takes the texts that MarshalText returns, and gives an error for any other text.
func (s *ShortWindow) UnmarshalText(text []byte) error {
	return choice.Parse("ShortWindow", shortWindowWords, text, s)
}
