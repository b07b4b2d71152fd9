package idempotent

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

// Config configures [New].
type Config struct {
	// Scope returns the owner of a request's key: a customer, a tenant. Required unless Shared is
	// set: in one common scope, a client that guesses a key gets another client's answer. The scope
	// has at most 200 bytes of UTF-8 without NUL; otherwise the request is answered with 500.
	Scope func(*http.Request) string `yaml:"-" env:"-"`
	// Shared puts all keys in one scope. Defaults to false.
	Shared bool `yaml:"shared" env:"SHARED"`
	// Optional accepts requests without a key, and handles each of them. Defaults to false: a
	// request without a key is answered with 400.
	Optional bool `yaml:"optional" env:"OPTIONAL"`
	// MaxBody is the maximal size of a request's body in bytes. The body is held in memory.
	// Defaults to 1 MiB.
	MaxBody int `yaml:"max_body" env:"MAX_BODY"`
	// MaxAnswer is the maximal size of an answer's body in bytes; a larger answer fails the
	// request. Defaults to 1 MiB.
	MaxAnswer int `yaml:"max_answer" env:"MAX_ANSWER"`
	// MaxWait is how long a repeat waits while the first request is being handled. Defaults to 2 s.
	MaxWait time.Duration `yaml:"max_wait" env:"MAX_WAIT"`
	// KeepRefused commits the changes of a handler that refuses its request: the status is between
	// 400 and 499, and does not ask the client to repeat the request. Defaults to false: the
	// changes are rolled back, and only the answer is kept.
	KeepRefused bool `yaml:"keep_refused" env:"KEEP_REFUSED"`
	// Retention is how long answers are kept. Defaults to 24 h.
	Retention time.Duration `yaml:"retention" env:"RETENTION"`
	// Interval is the time between two passes of Run. Defaults to a minute.
	Interval time.Duration `yaml:"interval" env:"INTERVAL"`
	// Logger receives errors, without keys, bodies and headers. Defaults to [slog.Default].
	Logger *slog.Logger `yaml:"-" env:"-"`
}

func (c Config) withDefaults() (Config, error) {
	var errs []error
	if (c.Scope == nil) == !c.Shared {
		errs = append(errs, errors.New("set either Scope or Shared: under one scope, whoever guesses a key gets another's answer"))
	}
	size := func(name string, value *int, def int) {
		if *value < 0 {
			errs = append(errs, fmt.Errorf("%s: %d is negative", name, *value))
		}
		if *value == 0 {
			*value = def
		}
	}
	size("MaxBody", &c.MaxBody, 1<<20)
	size("MaxAnswer", &c.MaxAnswer, 1<<20)
	span := func(name string, value *time.Duration, def time.Duration) {
		if *value < 0 {
			errs = append(errs, fmt.Errorf("%s: %v is negative", name, *value))
		}
		if *value == 0 {
			*value = def
		}
	}
	span("MaxWait", &c.MaxWait, 2*time.Second)
	span("Retention", &c.Retention, 24*time.Hour)
	span("Interval", &c.Interval, time.Minute)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, errors.Join(errs...)
}
