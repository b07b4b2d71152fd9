package amqp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"
)

const (
	// dialTimeout bounds connecting and the handshake, unless the URI has another timeout.
	dialTimeout = 30 * time.Second
	// closeTimeout bounds the closing handshake of a connection or a channel.
	closeTimeout = 5 * time.Second
	// requestTimeout bounds declarations and other requests of a subscriber.
	requestTimeout = 30 * time.Second
)

// broker has the addresses of the broker's nodes and the settings to connect with.
type broker struct {
	uris        []string // one for each host
	parsed      amqp091.URI
	config      amqp091.Config
	backoff     backoff
	credentials Credentials // nil if the URI has them
	name        string      // host:port/vhost, for logs and routes
}

// Credentials returns the user and the password to log in with.
type Credentials func(ctx context.Context) (user, password string, err error)

// newBroker checks c and the hosts. Its errors name the field and contain no part of the URI.
func newBroker(c wamqp.ConnectionConfig, hosts []string, credentials Credentials, role string) (*broker, error) {
	b := &broker{uris: []string{c.AmqpURI}, backoff: reconnectBackoff(c.Reconnect), credentials: credentials}
	var errs []error
	var err error
	if b.parsed, err = parseURI(c.AmqpURI); err != nil {
		errs = append(errs, fmt.Errorf("AMQP.Connection.AmqpURI: %w", err))
	}
	addresses := []string{net.JoinHostPort(b.parsed.Host, strconv.Itoa(b.parsed.Port))}
	if len(hosts) > 0 && err == nil {
		if b.uris, addresses, err = urisOf(c.AmqpURI, b.parsed.Port, hosts); err != nil {
			errs = append(errs, err)
		}
	}
	if credentials != nil && c.AmqpConfig != nil && c.AmqpConfig.SASL != nil {
		errs = append(errs, errors.New("Credentials: AMQP.Connection.AmqpConfig.SASL is set as well"))
	}
	if c.AmqpConfig != nil {
		b.config = *c.AmqpConfig
		if c.AmqpConfig.TLSClientConfig != nil && c.TLSConfig != nil {
			errs = append(errs, errors.New("AMQP.Connection.TLSConfig: AmqpConfig.TLSClientConfig is set as well"))
		}
		if c.AmqpConfig.Recovery != nil {
			errs = append(errs, errors.New("AMQP.Connection.AmqpConfig.Recovery: must be nil; this package reconnects by itself, "+
				"and recovery would count confirms of one channel for another"))
		}
	}
	if c.TLSConfig != nil {
		b.config.TLSClientConfig = c.TLSConfig
	}
	if tls := b.config.TLSClientConfig; tls != nil && tls.InsecureSkipVerify && tls.VerifyConnection == nil && tls.VerifyPeerCertificate == nil {
		errs = append(errs, errors.New("AMQP.Connection.TLSConfig: InsecureSkipVerify would give password and messages "+
			"to any server that answers; set RootCAs and ServerName, or check the certificate in VerifyConnection"))
	}
	if b.config.Vhost == "" {
		b.config.Vhost = b.parsed.Vhost
	}
	if len(b.config.Properties) == 0 {
		b.config.Properties = amqp091.NewConnectionProperties()
		b.config.Properties.SetClientConnectionName("boxpair " + role)
	}
	b.name = strings.Join(addresses, ",") + "/" + strings.TrimPrefix(b.config.Vhost, "/")
	return b, errors.Join(errs...)
}

// connection is a connection whose socket can be cut.
type connection struct {
	*amqp091.Connection
	raw   *bufferedConn
	since time.Time
	ended chan *amqp091.Error // receives the reason of the end, if there is one
}

// dial connects to one of the hosts. It gives up when ctx ends; the end of ctx does not affect the
// returned connection.
func (b *broker) dial(ctx context.Context) (*connection, error) {
	config := b.config
	password := b.parsed.Password
	if b.credentials != nil {
		user, secret, err := b.credentials(ctx)
		if err != nil {
			return nil, fmt.Errorf("connect to %s: credentials: %w", b.name, redact(err, secret))
		}
		config.SASL, password = []amqp091.Authentication{&amqp091.PlainAuth{Username: user, Password: secret}}, secret
	}
	var errs []error
	first := rand.IntN(len(b.uris))
	for i := range b.uris {
		conn, err := b.dialHost(ctx, b.uris[(first+i)%len(b.uris)], config)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, redact(err, password))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("connect to %s: %w", b.name, joinInLine(errs))
}

// joinInLine joins errors in one line; errors.Join would use several lines.
func joinInLine(errs []error) error {
	err := errs[0]
	for _, next := range errs[1:] {
		err = fmt.Errorf("%w; %w", err, next)
	}
	return err
}

func (b *broker) dialHost(ctx context.Context, uri string, config amqp091.Config) (*connection, error) {
	config.Properties = maps.Clone(config.Properties) // amqp091 writes to it, and to the TLS configuration
	if config.TLSClientConfig != nil {
		config.TLSClientConfig = config.TLSClientConfig.Clone()
	}
	var raw *bufferedConn
	var stop func() bool
	config.Dial = func(network, addr string) (net.Conn, error) {
		conn, err := b.dialSocket(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		// Until heartbeats begin, only this deadline detects a dead peer; amqp091 clears the
		// deadline after the handshake.
		if err := conn.SetDeadline(time.Now().Add(b.timeout())); err != nil {
			_ = conn.Close()
			return nil, err
		}
		raw = newBufferedConn(conn)
		stop = context.AfterFunc(ctx, raw.abort)
		return raw, nil
	}
	conn, err := amqp091.DialConfig(uri, config)
	if stop != nil && !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		if raw != nil {
			_ = raw.Close()
		}
		return nil, err
	}
	ended := conn.NotifyClose(make(chan *amqp091.Error, 1))
	return &connection{Connection: conn, raw: raw, since: time.Now(), ended: ended}, nil
}

func (b *broker) dialSocket(ctx context.Context, network, addr string) (net.Conn, error) {
	if b.config.Dial != nil {
		return b.config.Dial(network, addr)
	}
	dialer := net.Dialer{Timeout: b.timeout()}
	return dialer.DialContext(ctx, network, addr)
}

// timeout bounds connecting, and then the handshake.
func (b *broker) timeout() time.Duration {
	if b.parsed.ConnectionTimeout > 0 {
		return time.Duration(b.parsed.ConnectionTimeout) * time.Millisecond
	}
	return dialTimeout
}

// version returns the major version of the broker, or 0 if the broker does not tell it.
func (c *connection) version() int {
	v, _ := c.Properties["version"].(string)
	major, _, _ := strings.Cut(v, ".")
	n, _ := strconv.Atoi(major)
	return n
}

// cutAfter cuts the connection after timeout, unless the returned function is called before.
// Requests of amqp091 have no time limit, and a hung broker never answers.
func (c *connection) cutAfter(timeout time.Duration) (stop func() bool) {
	return time.AfterFunc(timeout, c.raw.abort).Stop
}

// errNoAnswer is the error of a request that the broker did not answer, although it answered
// requests on other channels.
var errNoAnswer = errors.New("no answer")

// request runs f, which makes requests, and cuts the connection if f takes longer than timeout.
// Then the error wraps errNoAnswer if the broker still answers requests on another channel.
func (c *connection) request(timeout time.Duration, f func() error) error {
	answers, done := false, make(chan struct{})
	timer := time.AfterFunc(timeout, func() {
		defer close(done)
		defer c.raw.abort()
		defer c.cutAfter(closeTimeout)()
		_, err := c.Channel()
		answers = err == nil
	})
	err := f()
	if timer.Stop() {
		return err
	}
	<-done
	if err != nil && answers {
		return fmt.Errorf("%w within %v: %w", errNoAnswer, timeout, err)
	}
	return err
}

// shut closes the connection within closeTimeout.
func (c *connection) shut() {
	defer c.cutAfter(closeTimeout)()
	_ = c.CloseDeadline(time.Now().Add(closeTimeout))
	_ = c.raw.Close()
}

// closeChannel closes ch and waits until the broker has handled all frames that were sent on it.
func (c *connection) closeChannel(ch *amqp091.Channel) {
	defer c.cutAfter(closeTimeout)()
	_ = ch.Close()
}

// withChannel runs f on a new channel, for declarations: a failed declaration closes its channel.
func (c *connection) withChannel(timeout time.Duration, f func(*amqp091.Channel) error) error {
	return c.request(timeout, func() error {
		ch, err := c.Channel()
		if err != nil {
			return err
		}
		defer c.closeChannel(ch)
		return f(ch)
	})
}
