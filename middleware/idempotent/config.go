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
	// Scope says whose key a request carries: a customer, a tenant. Required unless
	// Shared: with one scope for all, whoever guesses a key gets another's answer. At
	// most 200 bytes of UTF-8.
	Scope func(*http.Request) string `yaml:"-" env:"-"`
	// Shared says that all keys are of one scope. Defaults to false.
	Shared bool `yaml:"shared" env:"SHARED"`
	// Optional handles requests without a key as well, once for each time that they come.
	// Defaults to false: they are answered with 400.
	Optional bool `yaml:"optional" env:"OPTIONAL"`
	// MaxBody is how many bytes a request's body may have. It is held in memory.
	// Defaults to 1 MiB.
	MaxBody int `yaml:"max_body" env:"MAX_BODY"`
	// MaxAnswer is how many bytes an answer's body may have; beyond it the request
	// fails. Defaults to 1 MiB.
	MaxAnswer int `yaml:"max_answer" env:"MAX_ANSWER"`
	// MaxWait is how long a repeat waits for the request that is being handled.
	// Defaults to 2 s.
	MaxWait time.Duration `yaml:"max_wait" env:"MAX_WAIT"`
	// KeepRefused commits what a handler has changed before it answered with a refusal: a status
	// from 400 to 499 that does not ask to come again. Defaults to false: it is rolled back, and
	// the answer alone is kept.
	KeepRefused bool `yaml:"keep_refused" env:"KEEP_REFUSED"`
	// Retention is how long answers are kept. Defaults to 24 h.
	Retention time.Duration `yaml:"retention" env:"RETENTION"`
	// Interval is the time between two passes of Run. Defaults to a minute.
	Interval time.Duration `yaml:"interval" env:"INTERVAL"`
	// Logger receives what goes wrong, without keys, bodies and headers. Defaults to
	// [slog.Default].
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
