package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
)

// declaring calls declare with topics of the test's own: T stands for one that the outbox knows.
type declaring struct {
	*testing.T
	url, broker, topic string
	answer             string // on a terminal
	api                string
}

func newDeclaring(t *testing.T) *declaring {
	t.Helper()
	d := &declaring{T: t, broker: testenv.AMQPURL(t), topic: testenv.Name(t)}
	var change func(string)
	d.url, change = plantSQLite(t)
	change(`UPDATE boxpair_outbox_events SET topic = '` + d.topic + `'`)
	t.Cleanup(func() {
		ok(t, onChannel(d.broker, func(ch *amqp091.Channel) error {
			for _, consumer := range []string{"stock.reserve", "stock/reserve", "stock"} {
				for _, queue := range []string{d.topic + "_" + consumer, d.topic + "_" + consumer + ".undecodable"} {
					if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
						return err
					}
				}
			}
			return ch.ExchangeDelete(d.topic, false, false)
		}))
	})
	return d
}

// says runs declare, and compares what it says; without texts it says nothing but its result.
func (d *declaring) says(status int, args string, texts ...string) {
	d.Helper()
	named := strings.NewReplacer("T_", d.topic+"_", "TOPIC", d.topic, "URL", d.url, "API", d.api)
	words := strings.Fields("declare --amqp " + d.broker + " " + named.Replace(args))
	call := func() (int, string, string) { return call(d.T, nil, words...) }
	if d.answer != "" {
		call = func() (int, string, string) { return typed(d.T, d.answer, words...) }
	}
	got, out, errs := call()
	if got != status || (status == exitOK) != strings.Contains(out, " is there\n") || (len(texts) == 0) != (errs == "") {
		d.Errorf("%s: %d, %q, %q", args, got, out, errs)
	}
	for _, text := range texts {
		if text = named.Replace(text); !strings.Contains(errs, text) {
			d.Errorf("%s: want %q in %q", args, text, errs)
		}
	}
}

// bound tells whether the topic's exchange has a queue.
func (d *declaring) bound() (routed bool) {
	d.Helper()
	ok(d.T, onChannel(d.broker, func(ch *amqp091.Channel) error {
		returned := ch.NotifyReturn(make(chan amqp091.Return, 1))
		if err := ch.Confirm(false); err != nil {
			return err
		}
		sent, err := ch.PublishWithDeferredConfirm(d.topic, "", true, false, amqp091.Publishing{})
		if err != nil {
			return err
		}
		sent.Wait()
		routed = len(returned) == 0
		return nil
	}))
	return routed
}

// TestDeclareBindsTheQueueThatIsThere, under the name that its subscriber gives it and no inbox knows, and
// makes no queue beside it that nobody reads.
func TestDeclareBindsTheQueueThatIsThere(t *testing.T) {
	t.Parallel()
	d := newDeclaring(t)
	d.says(exitOK, "--topic TOPIC --consumer stock.reserve --new")
	ok(t, onChannel(d.broker, func(ch *amqp091.Channel) error {
		return ch.QueueUnbind(d.topic+"_stock.reserve", "", d.topic, nil)
	}))
	const named = "there is T_stock.reserve that nobody reads (--consumer stock.reserve)"
	for _, consumer := range []string{"stock/reserve", "stock", "reserve", "stok"} {
		d.says(exitFailed, "--topic TOPIC --inbox URL --consumer "+consumer, "there is no queue T_"+consumer+"; "+named, "Nothing was declared", "perhaps nobody reads", "pass --new only if")
	}
	d.says(exitFailed, "--topic TOPIC --consumer stock", "there is no queue T_stock. Nothing was declared")
	if d.bound() {
		t.Fatal("a refused declaration has bound a queue")
	}
	d.says(exitOK, "--topic TOPIC --inbox URL --consumer stock.reserve", "nobody reads queue T_stock.reserve now: its messages wait until its consumer starts\n")
	if !d.bound() {
		t.Fatal("the queue is not bound")
	}
	ok(t, onChannel(d.broker, func(ch *amqp091.Channel) error {
		if _, err := ch.Consume(d.topic+"_stock.reserve", "", false, false, false, false, nil); err != nil {
			return err
		}
		d.says(exitOK, "--topic TOPIC --consumer stock.reserve")
		d.says(exitFailed, "--topic TOPIC --inbox URL --consumer stock", "; there is T_stock.reserve that a consumer reads (--consumer stock.reserve)")
		d.says(exitOK, "--topic TOPIC --consumer stock --new")
		d.says(exitOK, "--topic TOPIC --inbox URL --consumer stock", "nobody reads queue T_stock now", "; there is T_stock.reserve that a consumer reads")
		return nil
	}))
}

func TestDeclareRefusesANewQueueWithWhatIsKnown(t *testing.T) {
	t.Parallel()
	d := newDeclaring(t)
	d.says(exitFailed, "--topic ordr.placed --consumer stock --outbox URL", "there is no queue ordr.placed_stock. no recent event, route or relay has topic ordr.placed. Nothing was declared")
	d.says(exitFailed, "--topic TOPIC --consumer stock --outbox URL", "there is no queue T_stock. Nothing was declared")
	d.says(exitFailed, "--topic TOPIC --consumer stock --outbox sqlite:/none/of/these.db", "there is no queue T_stock", "whether the topics are right could not be checked: --outbox sqlite:/none/of/these.db")
	d.says(exitFailed, "--topic TOPIC --consumer stock --inbox sqlite:/none/of/these.db", "there is no queue T_stock", "the queues that are there could not be read: --inbox sqlite:/none/of/these.db")
	d.says(exitFailed, "--topic TOPIC --exchanges queue", "there is no queue "+d.topic+". Nothing was declared")
	d.says(exitFailed, "--topic TOPIC --consumer stock --amqp amqp://127.0.0.1:1/", "--amqp: 127.0.0.1:1: ", "connection refused")

	d.answer = "\n"
	d.says(exitFailed, "--topic TOPIC --consumer stock", "perhaps nobody reads the queue\ndeclare it all the same? [y/N]", "nothing was changed")
	d.answer = "y\n"
	d.says(exitOK, "--topic TOPIC --consumer stock", "declare it all the same? [y/N]")
}

// TestDeclareNamesTheQueuesOfTheManagementAPI, with the partitions of a queue as one.
func TestDeclareNamesTheQueuesOfTheManagementAPI(t *testing.T) {
	t.Parallel()
	d := newDeclaring(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		type queue struct {
			Name      string `json:"name"`
			Consumers int    `json:"consumers"`
		}
		if q.URL.Path != "/api/queues//" {
			http.NotFound(w, q)
			return
		}
		_ = json.NewEncoder(w).Encode([]queue{
			{d.topic + "_mail", 0}, {d.topic + "_mail.1of2", 0}, {d.topic + "_mail.2of2", 1}, {d.topic + "_mail.undecodable", 0}, {d.topic + "_ship", 0}, {"other_mail", 1},
		})
	}))
	t.Cleanup(server.Close)
	d.api = server.URL
	d.says(exitFailed, "--topic TOPIC --consumer mial --management API",
		"there is no queue T_mial; there is T_mail that a consumer reads (--consumer mail), and T_ship that nobody reads (--consumer ship). Nothing")
	d.says(exitFailed, "--topic TOPIC --consumer mial --management API/shop", "--management: has a path", "--vhost")
}
