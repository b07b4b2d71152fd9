package settings

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/caarlos0/env/v11"
	"github.com/jackc/pgx/v5"
	"gopkg.in/yaml.v3"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/health"
	"github.com/boxpair/boxpair/middleware"
	"github.com/boxpair/boxpair/middleware/idempotent"
	"github.com/boxpair/boxpair/ops"
	"github.com/boxpair/boxpair/ops/doctor"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/mysql"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/telemetry"
	"github.com/boxpair/boxpair/telemetry/prometheus"
	"github.com/boxpair/boxpair/transport/amqp"
	"github.com/boxpair/boxpair/transport/memory"
)

const document = "../../docs/configuration.md"

// configurations are pointers to all of them, by name. A constructor is tried where values are
// checked.
func configurations(t *testing.T) map[string]*configuration {
	t.Helper()
	inbox := newInbox(t)
	return map[string]*configuration{
		"amqp.PublisherConfig":   of(func(c amqp.PublisherConfig) error { _, err := amqp.NewPublisher(c); return err }),
		"amqp.Queue":             of[amqp.Queue](nil),
		"amqp.SubscriberConfig":  of(func(c amqp.SubscriberConfig) error { _, err := amqp.NewSubscriber(c); return err }),
		"audit.Config":           of(func(c audit.Config) error { _, err := audit.New(c); return err }),
		"audit.Expectation":      of[audit.Expectation](nil),
		"consumer.Config":        of(func(c consumer.Config) error { _, err := consumer.New[*sql.Tx](nil, c); return err }),
		"consumer.HandlerConfig": of(func(c consumer.HandlerConfig) error { _, err := inbox.Handle("h", nil, c); return err }),
		"consumer.OrderConfig":   of[consumer.OrderConfig](nil),
		"consumer.RetryConfig":   of[consumer.RetryConfig](nil),
		"consumer.ParkedConfig":  of[consumer.ParkedConfig](nil),
		"consumer.GroupConfig":   of[consumer.GroupConfig](nil),
		"effects.Config":         of(func(c effects.Config) error { return handleEffect(inbox, c) }),
		"doctor.Config":          of(func(c doctor.Config) error { _, err := doctor.Run(context.Background(), c); return err }),
		"health.Config":          of(func(c health.Config) error { _, err := health.New(c); return err }),
		"idempotent.Config":      of(func(c idempotent.Config) error { _, err := idempotent.New[*sql.Tx](nil, nil, c); return err }),
		"memory.Config":          of(func(c memory.Config) error { _, err := memory.New(c); return err }),
		"middleware.Config": of(func(c middleware.Config) error {
			_, err := middleware.Wrap(inbox, "", message.PassthroughHandler, c)
			return err
		}),
		"middleware.RouterConfig": of(func(c middleware.RouterConfig) error { return putAround(inbox, c) }),
		"mysql.Config":            of(func(c mysql.Config) error { _, err := mysql.New(nil, c); return err }),
		"postgres.AuditorConfig":  of(func(c postgres.AuditorConfig) error { _, err := postgres.NewAuditor(nil, c); return err }),
		"postgres.Config":         of(func(c postgres.Config) error { _, err := postgres.New(nil, c); return err }),
		"prometheus.Config":       of(func(c prometheus.Config) error { _, err := prometheus.New(c); return err }),
		"ops.Config":              of(func(c ops.Config) error { _, err := ops.New(c); return err }),
		"relay.Backoff":           of[relay.Backoff](nil),
		"producer.Config":         of(func(c producer.Config) error { _, err := producer.New[*sql.Tx](nil, c); return err }),
		"relay.Downstream":        of[relay.Downstream](nil),
		"producer.JanitorConfig":  of(func(c producer.JanitorConfig) error { _, err := producer.NewJanitor(nil, c); return err }),
		"relay.Config":            of(func(c relay.Config) error { _, err := relay.NewStandalone(nil, nil, c); return err }),
		"sqlite.AuditorConfig":    of(func(c sqlite.AuditorConfig) error { _, err := sqlite.NewAuditor(nil, c); return err }),
		"sqlite.Config":           of(func(c sqlite.Config) error { _, err := sqlite.New(nil, c); return err }),
		"sqlite.ConnectorConfig":  of(func(c sqlite.ConnectorConfig) error { _, err := sqlite.NewConnector("x.db", c); return err }),
		"telemetry.Config":        of(func(c telemetry.Config) error { _, err := telemetry.New(c); return err }),
	}
}

// putAround puts inbox around a handler of a router.
func putAround(inbox *consumer.Inbox[*sql.Tx], c middleware.RouterConfig) error {
	router := message.NewDefaultRouter(nil)
	router.AddConsumerHandler("h", "topic", nil, func(*message.Message) error { return nil })
	return middleware.Router(inbox, c)(router)
}

// configuration is one type of them.
type configuration struct {
	kind  reflect.Type
	build func(pointer any) error // nil for a part of others, which are built with it
}

func of[C any](build func(C) error) *configuration {
	c := &configuration{kind: reflect.TypeFor[C]()}
	if build != nil {
		c.build = func(pointer any) error { return build(*pointer.(*C)) }
	}
	return c
}

// TestEveryDocumentedConfigurationIsLoadedHere keeps the list above complete.
func TestEveryDocumentedConfigurationIsLoadedHere(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	list := configurations(t)
	headings := regexp.MustCompile(`(?m)^### ([a-z]+\.[A-Z][A-Za-z]+)$`).FindAllStringSubmatch(string(text), -1)
	for _, h := range headings {
		if list[h[1]] == nil {
			t.Errorf("%s is not loaded by these tests", h[1])
		}
	}
	if len(headings) != len(list) {
		t.Errorf("%s has %d configurations, want %d", document, len(headings), len(list))
	}
}

// TestEverySettingIsLoaded writes a value for every setting into a file and into the environment,
// and finds it in the field.
func TestEverySettingIsLoaded(t *testing.T) {
	t.Parallel()
	for name, c := range configurations(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := reflect.New(c.kind)
			fill(t, want.Elem())

			var text strings.Builder
			writeYAML(&text, want.Elem(), "")
			fromFile := reflect.New(c.kind)
			if err := loadYAML(text.String(), fromFile.Interface()); err != nil {
				t.Fatalf("%v in:\n%s", err, &text)
			}
			if !reflect.DeepEqual(fromFile.Interface(), want.Interface()) {
				t.Errorf("file:\n%s\ngave %+v\nwant %+v", &text, fromFile.Elem(), want.Elem())
			}

			variables := map[string]string{}
			writeEnvironment(variables, want.Elem(), "APP_")
			fromEnvironment := reflect.New(c.kind)
			if err := loadEnvironment(variables, fromEnvironment.Interface()); err != nil {
				t.Fatalf("%v in %v", err, variables)
			}
			if !reflect.DeepEqual(fromEnvironment.Interface(), want.Interface()) {
				t.Errorf("%v\ngave %+v\nwant %+v", variables, fromEnvironment.Elem(), want.Elem())
			}
		})
	}
}

// TestWhatOnlyAProgramHasIsNoSetting tells that a file cannot set loggers, functions and the like.
func TestWhatOnlyAProgramHasIsNoSetting(t *testing.T) {
	t.Parallel()
	for name, c := range configurations(t) {
		for i := range c.kind.NumField() {
			f := c.kind.Field(i)
			if f.Tag.Get("yaml") != "-" {
				continue
			}
			for _, key := range []string{strings.ToLower(f.Name), f.Name} {
				if err := loadYAML(key+": {}", reflect.New(c.kind).Interface()); err == nil || !strings.Contains(err.Error(), "field "+key+" not found") {
					t.Errorf("%s: %s in a file gave the error %v", name, key, err)
				}
			}
		}
	}
}

func loadYAML(text string, into any) error {
	decoder := yaml.NewDecoder(strings.NewReader(text))
	decoder.KnownFields(true)
	return decoder.Decode(into)
}

func loadEnvironment(variables map[string]string, into any) error {
	return env.ParseWithOptions(into, env.Options{Prefix: "APP_", Environment: variables})
}

// fill sets every setting below v to a value that is not zero.
func fill(t *testing.T, v reflect.Value) {
	t.Helper()
	for i := range v.NumField() {
		f := v.Field(i)
		if v.Type().Field(i).Tag.Get("yaml") == "-" {
			continue
		}
		switch f.Interface().(type) {
		case time.Duration:
			f.SetInt(int64(90*time.Minute) + int64(i))
		case time.Time:
			f.Set(reflect.ValueOf(time.Date(2026, 1, 31, 12, 0, i, 0, time.UTC)))
		case pgx.TxIsoLevel:
			f.SetString(string(pgx.RepeatableRead))
		case map[string]string:
			f.Set(reflect.ValueOf(map[string]string{"orders": "sales", "stock": "store"}))
		default:
			fillKind(t, f, i)
		}
	}
}

func fillKind(t *testing.T, f reflect.Value, i int) {
	t.Helper()
	switch f.Kind() {
	case reflect.Int:
		f.SetInt(int64(100 + i))
	case reflect.Uint8:
		f.SetUint(1)
	case reflect.Float64:
		f.SetFloat(0.25)
	case reflect.Bool:
		f.SetBool(true)
	case reflect.String:
		f.SetString(fmt.Sprintf("text.%d", i))
	case reflect.Struct:
		fill(t, f)
	case reflect.Slice:
		f.Set(reflect.MakeSlice(f.Type(), 2, 2))
		for k := range 2 {
			if item := f.Index(k); item.Kind() == reflect.Struct {
				fill(t, item)
			} else {
				fillKind(t, item, k)
			}
		}
	default:
		t.Fatalf("do not know how to set a %s", f.Type())
	}
}
