package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/management"
	"github.com/boxpair/boxpair/transport/amqp"
)

// queueLook looks at queues over AMQP, and declares nothing.
type queueLook struct {
	conn  *amqp091.Connection
	vhost string
}

// lookTime bounds the connection to a broker, and each of its answers.
const lookTime = 10 * time.Second

// dialQueues connects to the broker at address: to the first of hosts that answers, if there are hosts.
func dialQueues(ctx context.Context, address string, hosts []string) (*queueLook, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("not a valid URL")
	}
	if len(hosts) == 0 {
		hosts = []string{u.Host}
	}
	var errs []error
	for _, host := range hosts {
		u.Host = host
		parsed, err := amqp091.ParseURI(u.String())
		if err != nil {
			return nil, errors.New("not a valid AMQP URL") // the error may quote the password
		}
		dial := func(network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{Timeout: lookTime}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return conn, conn.SetDeadline(time.Now().Add(lookTime)) // of the handshake
		}
		conn, err := amqp091.DialConfig(u.String(), amqp091.Config{Dial: dial, Heartbeat: lookTime, Locale: "en_US"})
		if err == nil {
			return &queueLook{conn, parsed.Vhost}, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", host, err))
	}
	return nil, errors.Join(errs...)
}

func (l *queueLook) close() { _ = l.conn.Close() }

// queue returns the state of a queue, or nil if there is none of this name.
func (l *queueLook) queue(name string) (*queueState, error) {
	ch, err := l.conn.Channel()
	if err != nil {
		return nil, err
	}
	q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
	if refused, is := errors.AsType[*amqp091.Error](err); is && refused.Code == amqp091.NotFound {
		return nil, nil // the broker has closed the channel
	}
	if err != nil {
		return nil, fmt.Errorf("queue %s: %w", name, err)
	}
	return &queueState{Queue: name, Ready: int64(q.Messages), Consumers: int64(q.Consumers)}, ch.Close()
}

// partition matches the end of the name of a partition.
var partition = regexp.MustCompile(`\.[0-9]+of[0-9]+$`)

// queuesAfter returns the queues whose names begin with prefix, without those for undecodable messages. The
// partitions of a queue are one.
func queuesAfter(ctx context.Context, m amqp.Management, vhost, prefix string) (list []queueState, err error) {
	api, err := management.New(m.URL, vhost, m.Client)
	if err != nil {
		return nil, fmt.Errorf("--management: %w", err)
	}
	var all []struct {
		Name      string `json:"name"`
		Consumers int64  `json:"consumers"`
	}
	there, err := api.Get(ctx, &all, "queues", api.VHost)
	if err == nil && !there {
		err = fmt.Errorf("there is no virtual host %q", api.VHost)
	}
	if err != nil {
		return nil, fmt.Errorf("--management: %w", err)
	}
	consumers := make(map[string]int64)
	for _, q := range all {
		if strings.HasPrefix(q.Name, prefix) && !strings.HasSuffix(q.Name, ".undecodable") {
			consumers[partition.ReplaceAllString(q.Name, "")] += q.Consumers
		}
	}
	for _, name := range slices.Sorted(maps.Keys(consumers)) {
		list = append(list, queueState{Queue: name, Consumers: consumers[name]})
	}
	return list, nil
}
