package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	leafLife      = 90 * 24 * time.Hour
	// renewBefore is how long before its end a certificate is replaced.
	renewBefore = leafLife / 3
	// backdate is for clients whose clock is slow.
	backdate = time.Hour
)

// tls returns the configuration of the TLS listener.
func (s *server) tls(ctx context.Context) (*tls.Config, error) {
	c := &s.o.Config
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if c.TLSCert != "" {
		cert, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
		if err != nil {
			return nil, fmt.Errorf("cannot load certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{cert}
		return config, nil
	}
	name, _, err := c.domain()
	if err != nil {
		return nil, err
	}
	dir, err := makeDir(s.dir, "tls")
	if err != nil {
		return nil, fmt.Errorf("cannot make certificate: %w", err)
	}
	a, err := openAuthority(dir, name)
	if err != nil {
		return nil, err
	}
	s.at.CA = a.path
	l := &leaf{a: a, domain: name, log: s.log}
	if _, err := l.get(ctx); err != nil {
		return nil, err
	}
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return l.get(ctx) }
	return config, nil
}

// An authority signs certificates for one domain, and can sign none for others.
type authority struct {
	path string // of its certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// openAuthority reads the authority of a domain, which is made when there is none.
func openAuthority(dir, domain string) (*authority, error) {
	path := filepath.Join(dir, "ca-"+domain+".pem")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeAuthority(path, domain)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read certificate authority: %w", err)
	}
	a, err := readAuthority(path, data)
	if err != nil {
		return nil, fmt.Errorf("cannot read certificate authority %s: %w; move it and its key away to have others made", path, err)
	}
	return a, nil
}

func readAuthority(path string, data []byte) (*authority, error) {
	keyData, err := os.ReadFile(keyPath(path))
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(data, keyData)
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("its key is of another kind")
	}
	if time.Until(pair.Leaf.NotAfter) < renewBefore {
		return nil, fmt.Errorf("it ends on %v", pair.Leaf.NotAfter)
	}
	return &authority{path: path, cert: pair.Leaf, key: key}, nil
}

func keyPath(path string) string { return strings.TrimSuffix(path, ".pem") + "-key.pem" }

func makeAuthority(path, domain string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "Bouvet authority of " + domain},
		NotBefore: time.Now().Add(-backdate), NotAfter: time.Now().Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: []string{domain},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("cannot make certificate authority: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	// The key first: a certificate without one is of no use.
	err = writeOnce(keyPath(path), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
	if err == nil {
		err = writeOnce(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot keep certificate authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{path: path, cert: cert, key: key}, nil
}

// writeOnce makes a file of ours alone, whole or not at all. One that is there is replaced.
func writeOnce(path string, data []byte) (err error) {
	temp := path + ".new"
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return os.Rename(temp, path)
}

func serial() *big.Int {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	b[0] &= 0x7f
	return new(big.Int).SetBytes(b)
}

// A leaf is the certificate of a domain and all names below it. It lives in memory, and is
// replaced before its end.
type leaf struct {
	a      *authority
	domain string
	log    *slog.Logger

	mu   sync.Mutex
	cert *tls.Certificate // guarded by mu
}

func (l *leaf) get(ctx context.Context) (*tls.Certificate, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cert != nil && time.Until(l.cert.Leaf.NotAfter) > renewBefore {
		return l.cert, nil
	}
	cert, err := l.a.sign(l.domain)
	if err != nil {
		if l.cert != nil {
			l.log.LogAttrs(ctx, slog.LevelError, "cannot renew certificate", slog.Any("error", err))
			return l.cert, nil
		}
		return nil, fmt.Errorf("cannot make certificate: %w", err)
	}
	l.cert = cert
	return cert, nil
}

// sign makes the certificate of a domain and all names below it.
func (a *authority) sign(domain string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(leafLife)
	if end.After(a.cert.NotAfter) {
		end = a.cert.NotAfter
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: domain},
		DNSNames:  []string{domain, "*." + domain},
		NotBefore: time.Now().Add(-backdate), NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: key, Leaf: parsed}, nil
}
