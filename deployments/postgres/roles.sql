-- Accounts of the two databases, each with access to one database only. Run once as the server's superuser:
--   psql --dbname postgres --file deployments/postgres/roles.sql
-- with both passwords in the environment. At first use, `dpca` creates and migrates its tables as their owner.
-- Consumers of artifacts have no account, because they read the object store.
\set ON_ERROR_STOP on
\getenv curator_password DPCA_DATABASE_PASSWORD
\getenv prefect_password PREFECT_DATABASE_PASSWORD

CREATE ROLE dpca_curator LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD :'curator_password';
CREATE ROLE prefect LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD :'prefect_password';

CREATE DATABASE dpca OWNER dpca_curator ENCODING 'UTF8' TEMPLATE template0;
CREATE DATABASE prefect OWNER prefect ENCODING 'UTF8' TEMPLATE template0;

-- By default every role may connect to every database.
REVOKE ALL ON DATABASE dpca FROM PUBLIC;
REVOKE ALL ON DATABASE prefect FROM PUBLIC;
REVOKE ALL ON DATABASE postgres FROM PUBLIC;
REVOKE ALL ON DATABASE template1 FROM PUBLIC;
