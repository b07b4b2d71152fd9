package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/boxpair/boxpair/internal/testenv/service"
)

// Authority signs certificates for the servers of one test. No system trusts it.
type Authority struct {
	t    testing.TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
	// Pool holds only the authority's certificate.
	Pool *x509.CertPool
	// File is the path of the authority's certificate in PEM.
	File string
}

// NewAuthority returns an authority for one test.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, Pool: x509.NewCertPool(), File: filepath.Join(t.TempDir(), "roots.pem")}
	a.key = newKey(t)
	template := certificate("boxpair test authority")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	a.cert = sign(t, template, template, a.key, a.key)
	a.Pool.AddCert(a.cert)
	a.pem = encode("CERTIFICATE", a.cert.Raw)
	if err := os.WriteFile(a.File, a.pem, 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

// Issue returns a certificate for a server at host, a name or an IP address.
func (a *Authority) Issue(host string) service.TLS {
	a.t.Helper()
	key := newKey(a.t)
	template := certificate(host)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return service.TLS{
		Certificate: encode("CERTIFICATE", sign(a.t, template, a.cert, key, a.key).Raw),
		Key:         encode("PRIVATE KEY", der), Roots: a.pem, Host: host,
	}
}

func certificate(name string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
