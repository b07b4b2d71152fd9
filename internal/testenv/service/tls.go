package service

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
)

// TLS is what a server needs to speak TLS, in PEM.
type TLS struct {
	Certificate, Key []byte
	// Roots are the certificates of the authority that has signed Certificate.
	Roots []byte
	// Host is a name or an address that Certificate is for.
	Host string
}

// tlsFiles are where a server finds its TLS.
type tlsFiles struct{ certificate, key, roots string }

var errNoTLSInDocker = errors.New("TLS is set up for installed binaries only, not in Docker")

// write puts the files into dir, for the account that a server runs as.
func (c *TLS) write(dir string, as account) (tlsFiles, error) {
	in := func(name string) string { return filepath.Join(dir, name) }
	files := tlsFiles{certificate: in("server.pem"), key: in("server.key"), roots: in("roots.pem")}
	for path, text := range map[string][]byte{
		files.certificate: c.Certificate, files.key: c.Key, files.roots: c.Roots,
	} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return files, err
		}
		if err := as.own(path); err != nil {
			return files, err
		}
	}
	return files, nil
}

// client is the configuration of a client that looks for this very server. It knows which
// name the certificate is for, whatever the address is.
func (c *TLS) client() *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.Roots)
	return &tls.Config{RootCAs: roots, ServerName: c.Host, MinVersion: tls.VersionTLS12}
}
