package consumer_test

import "github.com/boxpair/boxpair/consumer/internal/consumertest"

// What these tests share with those of package effects.
type (
	database[TX any] = consumertest.Database[TX]
	logBuffer        = consumertest.LogBuffer
)

var (
	newPostgres, openPostgres = consumertest.NewPostgres, consumertest.OpenPostgres
	newSQLite                 = consumertest.NewSQLite
	onEach                    = consumertest.OnEach
	with                      = consumertest.With

	number, event = consumertest.Number, consumertest.Event
	msg, keyed    = consumertest.Msg, consumertest.Keyed
	again         = consumertest.Again
	runOnce       = consumertest.RunOnce
	waitFor       = consumertest.WaitFor

	asChild, dieIn = consumertest.AsChild, consumertest.DieIn
	kill           = consumertest.Kill
)
