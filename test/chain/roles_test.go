package chain

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

// newRole makes a role that may log in and nothing else, and returns url with its login.
func newRole(t *testing.T, url string) (name, login string) {
	t.Helper()
	name = testenv.Name(t)
	admin, err := pgx.Connect(t.Context(), url)
	ok(t, err)
	_, err = admin.Exec(t.Context(), `CREATE ROLE "`+name+`" LOGIN PASSWORD '`+canaryPassword+`'`)
	ok(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := admin.Exec(ctx, `DROP OWNED BY "`+name+`"; DROP ROLE "`+name+`"`)
		ok(t, errors.Join(err, admin.Close(ctx)))
	})
	return name, with(t, url, name, "")
}

// execute runs statements as the owner of a database.
func execute(t *testing.T, url, statements string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	ok(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	_, err = conn.Exec(t.Context(), statements)
	ok(t, err)
}

func grant(t *testing.T, url string, roles migrations.Roles) {
	t.Helper()
	names, err := migrations.PostgresNames("", "")
	ok(t, err)
	grants, err := migrations.PostgresGrants(names, roles)
	ok(t, err)
	execute(t, url, grants)
}

// brokerUsers are users of a broker of the test's own, with the permissions that docs/security.md
// gives them.
type brokerUsers struct{ deploy, relay, consumer string }

func newBrokerUsers(t *testing.T, node *testenv.Node) brokerUsers {
	t.Helper()
	user := func(name, configure, write, read string) string {
		node.Ctl(t, "add_user", name, canaryPassword)
		node.Ctl(t, "set_permissions", "-p", "/", name, configure, write, read)
		u, err := url.Parse(node.URL())
		ok(t, err)
		u.User = url.UserPassword(name, canaryPassword)
		return u.String()
	}
	return brokerUsers{
		deploy:   user("deploy", `^placed`, `^placed`, `^placed`),
		relay:    user("relay", `^$`, `^placed$`, `^$`),
		consumer: user("stock", `^$`, `^$`, `^placed(_stock)?$`),
	}
}

// logins are the addresses of a database for the roles of the parts.
type logins struct{ producer, relay, consumer, janitor, operator, monitor string }

// newLogins gives each part of the library a role of its own in a database. The consumer's has the
// producer's section besides, for handlers that write events.
func newLogins(t *testing.T, url string) logins {
	t.Helper()
	var r migrations.Roles
	var l logins
	r.Producer, l.producer = newRole(t, url)
	r.Relay, l.relay = newRole(t, url)
	r.Consumer, l.consumer = newRole(t, url)
	r.Janitor, l.janitor = newRole(t, url)
	r.Operator, l.operator = newRole(t, url)
	r.Monitor, l.monitor = newRole(t, url)
	grant(t, url, r)
	grant(t, url, migrations.Roles{Producer: r.Consumer})
	execute(t, url, `GRANT SELECT, INSERT, UPDATE ON aggregates TO "`+r.Producer+`"; GRANT INSERT ON effects TO "`+r.Consumer+`"`)
	return l
}

// TestChainWorksWithLeastPrivileges gives writer, relay, consumer, janitor, operator and monitor a
// database role each, and relay and consumer a broker user each. Another user has declared the
// broker's topology.
func TestChainWorksWithLeastPrivileges(t *testing.T) {
	t.Parallel()
	node := testenv.PrivateRabbitMQ(t)
	users := newBrokerUsers(t, node)
	deploy, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(users.deploy, "stock")})
	ok(t, err)
	ok(t, deploy.SubscribeInitialize("placed"))
	ok(t, deploy.Close())

	shop, shopURL := newPostgres(t)
	stock, stockURL := newPostgres(t)
	atShop, atStock := newLogins(t, shopURL), newLogins(t, stockURL)
	sub, err := amqp.NewSubscriber(amqp.SubscriberConfig{
		AMQP: amqp.DurablePubSub(users.consumer, "stock"), Topology: amqp.Passive, DeliveryLimitIsSafe: true,
	})
	ok(t, err)
	t.Cleanup(func() { _ = sub.Close() })
	var failed, repaired atomic.Bool
	consuming := openPostgres(t, atStock.consumer)
	s := startService(t, consuming, outboxOf(t, consuming), sub, "placed", consumer.Config{Service: "stock"},
		consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}, Retry: consumer.RetryConfig{QuickAttempts: 1}, Parked: consumer.ParkedConfig{MinBackoff: 1}},
		func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
			key := w.Event().Key
			if _, err := w.Write(ctx, producer.Event{Topic: "reserved", Key: key}); err != nil {
				return err
			}
			if key == "a" && !failed.Swap(true) { // so that it is parked and taken up again
				return errors.New("not yet")
			}
			if key == "c" && !repaired.Load() {
				return consumer.Reject(errors.New("an operator has to see to it"))
			}
			return stock.effect(ctx, w, "stock")
		})
	pub, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: amqp.DurablePubSub(users.relay, ""), Topology: amqp.Passive})
	ok(t, err)
	t.Cleanup(func() { _ = pub.Close() })
	relay, err := relay.NewStandalone(openPostgres(t, atShop.relay).store, thrice(pub), relay.Config{})
	ok(t, err)
	start(t, relay.Run)
	writer := openPostgres(t, atShop.producer)
	placeAll(t, writer, outboxOf(t, writer), "placed", 5, "a", "b")
	placeAll(t, writer, outboxOf(t, writer), "placed", 1, "c")

	stock.wantEffects(t, "stock", 10)
	stock.wantOrder(t, "stock", "a", 5)
	shop.wantDrained(t)
	eventually(t, "leases with a witness", func() bool {
		return shop.number(`SELECT count(*) FROM boxpair.outbox_shards WHERE witness_epoch = epoch AND witness IS NOT NULL`) == 64
	})
	if c := s.handler.Counters(); c.Parked == 0 {
		t.Errorf("counters: %+v", c)
	}
	monitorSees(t, atStock, "inbox_status", "dead", 1)
	monitorSees(t, atShop, "outbox_status", "delivered", 11)
	repaired.Store(true)
	redriveMessages(t, atStock, 1)
	stock.wantEffects(t, "stock", 11)
	if n := stock.number(`SELECT count(*) FROM boxpair.outbox_queue`); n != 11 {
		t.Errorf("%d events written by handlers", n)
	}
	replayAndRemove(t, shop, outboxOf(t, openPostgres(t, atShop.operator)), openPostgres(t, atShop.janitor).store, "placed", 11)
	monitorSees(t, atStock, "inbox_status", "dead", 0)
	stock.wantEffects(t, "stock", 11)
}

// monitorSees waits until a view shows the monitor so many rows in state, and checks that it may
// read the numbers of the outbox.
func monitorSees(t *testing.T, at logins, view, state string, n int) {
	t.Helper()
	db := openPostgres(t, at.monitor)
	eventually(t, view+" with what is "+state, func() bool {
		return db.number(`SELECT count(*) FROM boxpair.`+view+` WHERE state = $1`, state) == n
	})
	_, err := outboxOf(t, db).Stats(t.Context())
	ok(t, err)
}

// redriveMessages has an operator redrive the n messages that are dead.
func redriveMessages(t *testing.T, at logins, n int) {
	t.Helper()
	in, err := consumer.New(openPostgres(t, at.operator).store, consumer.Config{Service: "stock"})
	ok(t, err)
	ids, err := in.Redrive(t.Context(), inbox.Filter{}, "the cause is mended")
	if err != nil || len(ids) != n {
		t.Errorf("redrove %v, %v; want %d", ids, err, n)
	}
}

// TestBrokerUsersAreDeniedWhatIsNotTheirs: only the relay's user can publish, so no other user can
// claim a dispatch ID before its event is sent.
func TestBrokerUsersAreDeniedWhatIsNotTheirs(t *testing.T) {
	t.Parallel()
	node := testenv.PrivateRabbitMQ(t)
	users := newBrokerUsers(t, node)
	deploy, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(users.deploy, "stock")})
	ok(t, err)
	ok(t, deploy.SubscribeInitialize("placed"))
	ok(t, deploy.Close())

	for name, pub := range map[string]struct {
		config wamqp.Config
		topic  string
	}{
		"consumer to its topic": {amqp.DurablePubSub(users.consumer, ""), "placed"},
		"consumer to its queue": {amqp.DurableQueue(users.consumer), "placed_stock"},
		"relay to a queue":      {amqp.DurableQueue(users.relay), "placed_stock"},
		"relay to others":       {amqp.DurablePubSub(users.relay, ""), "paid"},
	} {
		p, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: pub.config, Topology: amqp.NoTopology})
		ok(t, err)
		results := make(chan transport.Result, 1)
		p.Send(t.Context(), pub.topic, message.NewMessage(uuid.NewString(), nil), func(r transport.Result) { results <- r })
		if r := <-results; r.Outcome == transport.Confirmed || !strings.Contains(r.Err.Error(), "ACCESS_REFUSED") {
			t.Errorf("%s: %v, %v", name, r.Outcome, r.Err)
		}
		ok(t, p.Close())
	}
	for name, test := range map[string]func(ch *amqp091.Channel) error{
		"declare": func(ch *amqp091.Channel) error {
			_, err := ch.QueueDeclare("placed_own", true, false, false, false, nil)
			return err
		},
		"delete": func(ch *amqp091.Channel) error {
			_, err := ch.QueueDelete("placed_stock", false, false, false)
			return err
		},
		"bind": func(ch *amqp091.Channel) error { return ch.QueueBind("placed_stock", "", "placed", false, nil) },
		"purge or read": func(ch *amqp091.Channel) error {
			_, _, err := ch.Get("placed_stock", true)
			return err
		},
	} {
		for who, address := range map[string]string{"relay": users.relay, "consumer": users.consumer} {
			if who == "consumer" && name == "purge or read" {
				continue // that is what it is for
			}
			conn, err := amqp091.Dial(address)
			ok(t, err)
			ch, err := conn.Channel()
			ok(t, err)
			var refused *amqp091.Error
			if err := test(ch); !errors.As(err, &refused) || refused.Code != amqp091.AccessRefused {
				t.Errorf("%s may %s: %v", who, name, err)
			}
			_ = conn.Close()
		}
	}
}
