package amqp_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport/amqp"
)

// TestTLSSettingsCarryOver through a proxy that speaks TLS, with one tls.Config for
// several clients, which are not to change it.
func TestTLSSettingsCarryOver(t *testing.T) {
	t.Parallel()
	plain := testenv.AMQPURL(t)
	certificate, roots := selfSigned(t)
	addr := tlsProxy(t, plain, certificate)
	u, err := url.Parse(plain)
	if err != nil {
		t.Fatal(err)
	}
	u.Scheme, u.Host = "amqps", addr

	name := topic(t)
	config := amqp.DurableQueue(u.String())
	config.Connection.TLSConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config})
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config})
	messages := subscribe(t, s, name)
	for range 100 {
		mustConfirm(t, p, name, newMessage("x"))
		receive(t, messages).Ack()
	}
	if config.Connection.TLSConfig.ServerName != "" {
		t.Error("the user's tls.Config was changed")
	}
	config.Connection.TLSConfig = nil // and the certificate is unknown
	stranger := newPublisher(t, amqp.PublisherConfig{AMQP: config})
	if err := stranger.Publish(name, newMessage("x")); err == nil {
		t.Error("published to a host with an unknown certificate")
	}
}

// TestBrokerMustShowACertificateForItsHost: a broker is used if its certificate is for the host
// in the URI and signed by the roots that the configuration names, and neither password nor message
// reaches any other.
func TestBrokerMustShowACertificateForItsHost(t *testing.T) {
	t.Parallel()
	authority, stranger := testenv.NewAuthority(t), testenv.NewAuthority(t)
	node := testenv.PrivateRabbitMQTLS(t, authority.Issue("127.0.0.1"))
	u, err := url.Parse(node.URL())
	if err != nil {
		t.Fatal(err)
	}
	trusted := &tls.Config{RootCAs: authority.Pool, MinVersion: tls.VersionTLS12}

	config := amqp.DurableQueue(u.String())
	config.Connection.TLSConfig = trusted
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config})
	messages := subscribe(t, s, "verified")
	mustConfirm(t, newPublisher(t, amqp.PublisherConfig{AMQP: config}), "verified", newMessage("x"))
	receive(t, messages).Ack()

	const password = "canary-password"
	for name, test := range map[string]struct {
		scheme, host string
		config       *tls.Config
		says         string
	}{
		"other name":               {"amqps", "localhost", trusted, "certificate"},
		"other authority":          {"amqps", "127.0.0.1", &tls.Config{RootCAs: stranger.Pool, MinVersion: tls.VersionTLS12}, "certificate"},
		"authority of the machine": {"amqps", "127.0.0.1", nil, "certificate"},
		"without TLS":              {"amqp", "127.0.0.1", nil, "connect to"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := url.URL{Scheme: test.scheme, User: url.UserPassword("app", password), Host: test.host + ":" + u.Port(), Path: "/"}
			config := amqp.DurableQueue(u.String())
			config.Connection.TLSConfig = test.config
			p := newPublisher(t, amqp.PublisherConfig{AMQP: config, ConfirmTimeout: publishCall})
			s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config})
			_, err := s.Subscribe(t.Context(), "verified")
			for _, err := range []error{p.Connect(t.Context()), err} {
				if err == nil || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), password) {
					t.Errorf("error = %v", err)
				}
			}
		})
	}
}

func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}

// tlsProxy takes TLS off what goes to the broker.
func tlsProxy(t *testing.T, broker string, certificate tls.Certificate) string {
	t.Helper()
	u, err := url.Parse(broker)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12,
	})
	if err != nil {
		t.Fatal(err)
	}
	var relays sync.WaitGroup
	relays.Go(func() {
		for {
			outer, err := listener.Accept()
			if err != nil {
				return
			}
			relays.Go(func() {
				defer outer.Close()
				inner, err := net.Dial("tcp", u.Host)
				if err != nil {
					t.Error(err)
					return
				}
				defer inner.Close()
				relays.Go(func() {
					_, _ = io.Copy(inner, outer)
					_ = inner.Close()
				})
				_, _ = io.Copy(outer, inner)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		relays.Wait()
	})
	return listener.Addr().String()
}
