"""The services of the routes' tests, for the pages."""

from tests.fixtures.http import bearing as bearing
from tests.fixtures.http import client as client
from tests.fixtures.http import data_dir as data_dir
from tests.fixtures.http import encoding as encoding
from tests.fixtures.http import endless_bootstrap as endless_bootstrap
from tests.fixtures.http import finished as finished
from tests.fixtures.http import locked as locked
from tests.fixtures.http import models as models
from tests.fixtures.http import new_key as new_key
from tests.fixtures.http import packed as packed
from tests.fixtures.http import running as running
from tests.fixtures.http import running_with_keys as running_with_keys
from tests.fixtures.http import serve as serve
