"""The services of the routes' tests, for the pages."""

from tests.api.conftest import bearing as bearing
from tests.api.conftest import client as client
from tests.api.conftest import data_dir as data_dir
from tests.api.conftest import encoding as encoding
from tests.api.conftest import endless_bootstrap as endless_bootstrap
from tests.api.conftest import finished as finished
from tests.api.conftest import locked as locked
from tests.api.conftest import models as models
from tests.api.conftest import new_key as new_key
from tests.api.conftest import packed as packed
from tests.api.conftest import running as running
from tests.api.conftest import running_with_keys as running_with_keys
from tests.api.conftest import serve as serve
